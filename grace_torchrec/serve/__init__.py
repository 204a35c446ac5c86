"""Serve: converted models that answer, and follow what changes: rows, requests, tastes.

Flow: model + Plan -> *Served* -> an engine, deltas, refreshes, files.

Read in this order:

- making one: convert, copies;
- its tables: table_batch_collection, inner_tables, table_pieces, row_types, parts and direct_rows (who
  reads them), sharding, cache_stats;
- the value: served, slots (two copies of its rows);
- trained rows: delta, masters, members, tracked;
- on disk: files, dense_state, document, mapped_arrays;
- without this package: torchscript, exported;
- requests: engine, engine_arguments, request_queue, request_form, joining, row_dims, crew (the threads that outlive nobody), workers,
  answering (what each does with a batch), worker_streams, model_switch and live_model (what answers now), cache_gates, segmented_model and
  shared_streams (batches that share streams), shadow, outlook (when could one start);
- what became of them: metrics, prometheus;
- new plans: drift, refresh, refresh_conversion, refresh_deltas, refresh_proof and proof, refresh_record, serving_place,
  background.
"""
