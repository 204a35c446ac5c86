"""Command line: a file per sub-command; parse, call one public function, render the value.

Read main first (names, exit codes, errors), then any sub-command; they share options,
trace_options, places (what may be written where), words (what errors say here), and
model_argument and plan_argument, which call what function_argument finds.
"""
