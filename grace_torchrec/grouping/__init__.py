"""Grouping: from a trace and a budget to the groups of items whose sums are worth storing."""
