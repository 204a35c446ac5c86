"""Sharding: memory tiers and the placement of sums and rows over them."""
