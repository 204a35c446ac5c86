"""Stored sums: which groups have one, how bags are rewritten to them, how rows are built.

Flow: grouping -> *StoredSums* -> plans, modules.

Read in this order: stored_sums (the value); clusters, subsets, sets (its three codes); rewrite and
count_reads (what bags read with it); build_rows (the rows themselves); arrays (what files hold);
covering (a check that they share).
"""
