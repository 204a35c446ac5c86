"""Same values: whether a traced or scripted model computes what its model does.

Flow: output of the model, output of its trace -> convert and TorchScript refuse a difference.
"""

from typing import Any

import torch


def same_values(wanted: Any, found: Any) -> bool:
    """Tell whether all tensors of two outputs are equal, bit for bit.

    Args:
        wanted: Tensors, in any containers.
        found: The same containers.

    Raises:
        ValueError: they hold another number of values.
    """
    leaves = torch.utils._pytree.tree_leaves
    pairs = zip(leaves(wanted), leaves(found), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor))
