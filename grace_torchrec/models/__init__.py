"""Models: small dense parts over any embedding bag collection, for demos, tests and benches.

Read in this order: dlrm and dlrm_dense, wide_deep, din, bst; parts (layers they share); bundled (all
four by name, with batches).
"""
