"""What is wrong with an installation: facts.collect -> diagnose.diagnose -> a value to render.

Read in this order: facts (what is there), known_good (what fits), import_failures (what an error means),
diagnose (the rules), findings (the value).
"""
