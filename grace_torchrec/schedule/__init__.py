"""Schedule: which operator runs on which stream, in which order, and the proof that it may.

Flow: model -> OpGraph + OpStats -> *Schedule* -> lowered GraphModule, proven free of races.
Source: RecOS, IJCAI'25 (its equations are not in the text we hold: what is derived says so).
This package knows no plan and imports neither torchrec nor fbgemm.

Read in this order:

- the verb: stream_pass;
- the operators: tracing, touched (whose memory they read and write), copied, operators, op_graph,
  resources (what they share), csr, fusing (as a compiler leaves them);
- their costs: op_stats, profiling, launches, roofline;
- a schedule: schedule, priority, search, alike, issue_order, held_bytes, kept, exact (the shortest);
- the model that follows it: lower, lifetimes, graph_module, straight_code, backends, tensor_pool;
- the proof: program, telling, race_check, in_flight, interleavings; observed and same_values (what a
  run shows);
- a server that decides as queries come: stream_choice (the rules, in plain Python), embedding_order,
  monitor, online; segments and
  segment_program (what it launches), stream_sets and cpu_streams (where);
- how long it takes: replay (one query), arrivals and simulator (many, and the paper's rivals);
- other ways to run it: capture (CUDA graphs), compiling (torch.compile).

Files ``_*.py`` hold the compiled loops of these.
"""
