"""What is wrong with an installation: facts.collect -> diagnose.diagnose -> a value to render."""
