"""Kernels: cluster addresses and reductions, each op with its plain-torch meaning beside it.

Flow: sums and modules call the ops; nothing here knows plans, modules or TorchRec.
"""
