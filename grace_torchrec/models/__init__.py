"""Models: small dense parts over any embedding bag collection, for demos, tests and benches."""
