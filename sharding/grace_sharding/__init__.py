"""Sharding: memory tiers, the placement of sums and rows over them, and tables over ranks.

Flow: plans say what tables read; placement, and TorchRec's planner, say where rows live.

Read in this order:

- the machine: memory_tiers, lookup_costs, memory_files, calibration, and ``machines.json``;
- what a table reads: table_reads, outlook (of bags to come), variants (the ways to serve it);
- where rows go: filling, joint (all tables together), stops (how far HBM is filled), placement;
- which rank: shards, then, with TorchRec, planner, estimator, planner_stats; obstacles and remedies say
  what is in the way of a plan, and what helps;
- errors, and every touch of a private part of TorchRec: ``_torchrec.py``.
"""
