"""Grouping: from a trace and a budget to the groups of items whose sums are worth storing.

Flow: Trace -> counts -> ``fit(trace, budget, seed)`` of a method -> *StoredSums* -> plans.

Read in this order:

- what is counted: layers, pair_counts, partners, counted (each when it is first asked for);
- the paper's method: bounds, paper_greedy;
- derived methods: grace_floor, subset_clusters, set_merge, set_refine;
- which method: candidates, choose, guess;
- shared: budgets, threads.

Files ``_*_core.py`` hold the compiled loops of these.
"""
