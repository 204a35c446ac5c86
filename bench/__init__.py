"""Benchmarks: each case is a claim with its rivals, run by ``python -m bench CASE --json``."""
