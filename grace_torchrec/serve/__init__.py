"""Serve: converted models that answer, take deltas, and are saved and loaded."""
