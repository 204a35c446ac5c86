"""Command line: a file per sub-command; parse, call one public function, render the value."""
