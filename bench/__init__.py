"""Benchmarks: each case is a claim with its rivals, run by ``python -m bench CASE --json``.

Flow: run finds a file of ``cases/`` by its name and prints its result as one JSON object.

Beside the cases: ``rivals/`` (the methods of others), ``scheduling/`` (what case ``schedule`` measures), ``scoreboard/``
(what case ``papers`` compares), ``data/``; measure, memory and inputs (shared by cases); lookup_*, placement_*,
two_memories, drift_figure, scaling_figure and the like (a part of the case they are named for); gpu_* (two programs
for a machine with a GPU, gpu_check and gpu_check_fbgemm).
"""
