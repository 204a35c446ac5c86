"""Traces: the bags that users requested, where they come from and how they are split.

Flow: files, batches or a live model -> *Trace* -> *Profile* -> grouping and plans.

Read in this order:

- the values: trace, profile;
- from files: readers (a file a format), shards (many files), array_files (pieces that wait on disk);
- generated: synthetic, drifting;
- from a live model: recorder and recorder_arguments, live_batches and live_hooks (where its bags are),
  recorder_budget (which batches are looked at), live_sample and reservoir (which bags are held), recorder_files,
  recorder_stats, snapshots and steady_clock (what it writes and tells);
- made of others: merge (joined, capped, sampled), split (fit, validation, test), hashed (draws that
  depend on a value alone).
"""
