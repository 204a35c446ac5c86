"""Demo: the main job on one trace, from bags to a verdict, every figure measured or modelled."""
