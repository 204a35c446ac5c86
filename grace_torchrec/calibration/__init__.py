"""Calibration: what a plan must know of this machine, measured.

Read in this order: machine (rates of memories, and on a CPU the costs of lookups), lookup_costs (how these are
timed), grouped_bags (the bags they are timed on).
"""
