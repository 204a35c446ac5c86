"""Demo: the main job on one trace, from bags to a verdict, every figure measured or modelled.

Read in this order: job (the steps), train and batches (what they use), result (what they give).
"""
