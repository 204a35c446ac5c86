"""Schedule: which operator runs on which stream, in which order, and the proof that it may.

Flow: model -> OpGraph + OpStats -> *Schedule* -> lowered GraphModule, proven free of races.
Source: RecOS, IJCAI'25 (its equations are not in the text we hold: what is derived says so).
This package knows no plan and imports neither torchrec nor fbgemm.
"""
