"""Modules: the drop-in embedding bag collection, the swap, its undo and its proof.

Flow: Plan + model -> *GraceEmbeddingBagCollection* in the place of stock collections.

Read in this order:

- in and out: swap, refusals, fitting; the proof: verify, verified;
- the module: embedding_bag_collection, stored_tables;
- a batch on its way: bags, rewriter, tier_bags, lookup;
- batches rewritten ahead: rewritten_batch, rewrite_ahead;
- the same as one call, while nothing traces it: direct, laid_out, one_call, watch;
- rows that change: freshness, checkpoint;
- several ranks: sharded_lookup, sharded_rewriter, sharded_rows;
- every touch of a private part of TorchRec: ``_torchrec.py``.
"""
