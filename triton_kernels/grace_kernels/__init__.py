"""Kernels: rewriting of bags and sums of rows, each op with its plain-torch meaning beside it.

Flow: sums and modules call the ops; nothing here knows plans, modules or TorchRec.

Read in this order:

- what every op means: reference, reference_subsets, reference_sets;
- the ops: ops, ops_rows; op_inputs and per_table (what they share), bad_rows and errors (what they raise);
- on the CPU: cpu, cpu_codes, rewrite_bags_cpu; plain_path (CPUs without AVX2), threads;
- what they read: table_rows, row_layout, packed_codes, subset_tables;
- on a GPU: clusters, subsets, pooling, build_sums (Triton); gpu, gpu_bags (the ops), device_rows, pieces;
- the GPU code without a GPU: compile_variants, compile_check.

Files ``_*.py`` hold compiled loops: ``_entry`` takes a batch, ``_rewrite`` its bags (``_split_ids``, then one of the
``_merge*`` or ``_sets``), ``_lookup`` and ``_pool_rows`` read the rows (``_sum_rows``, ``_prefetch``).
"""
