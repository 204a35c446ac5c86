"""Readers: one file per trace format, one shared way to report a malformed line."""
