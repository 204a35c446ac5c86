"""Traces: the bags that users requested, where they come from and how they are split."""
