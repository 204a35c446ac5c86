"""Stored sums: which groups have one, how bags are rewritten to them, how rows are built."""
