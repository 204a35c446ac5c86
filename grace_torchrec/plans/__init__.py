"""Plans: per table what to store, where, and why; a value that is saved, read and compared.

Flow: TableSpec + Profile + MemoryModel + PlanOptions -> *Plan* -> modules, serve, views.

Read in this order:

- what is asked: table_spec, options;
- the value: plan, table_plan, prediction, curve, held (its bytes), inner_tables (what it is served from),
  claims (which of its times are said out loud);
- what a table could store: cannot_gain, candidates, choose, offers, asked (the rows bags ask for);
- which of it, and where, all tables together: pricing, cpu_lookup_cost, host_use
  (whether rows leave a free HBM), sharing, shipping, ordering, settle;
- the whole: make, sharding (several ranks);
- on disk: files, parse, texts, numbers, versions, and ``plan.schema.json``;
- looked at: summary, summarise, stock_plan (those of TorchRec), diff, what_if.
"""
