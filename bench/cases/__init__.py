"""Cases: a file per claim; its ``command`` is found by its file name."""
