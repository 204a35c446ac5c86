"""Same values: whether two outputs of a model are one, so that a trace or a schedule may stand for it.

Flow: output of the model, output of its trace, schedule or script -> a difference is refused.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def same_values(wanted: Any, found: Any) -> bool:
    """Tell whether two outputs hold equal values in the same places.

    Tensors are equal bit for bit but for the sign of zero, and NaN is NaN.  Lists and tuples are
    one, as TorchScript takes one for the other; objects that say nothing of equality are not
    compared.

    Args:
        wanted: Tensors and plain values, in any containers.
        found: The same.
    """
    if isinstance(wanted, Tensor) or isinstance(found, Tensor):
        return (
            isinstance(wanted, Tensor) and isinstance(found, Tensor) and _same_tensor(wanted, found)
        )
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return wanted.keys() == found.keys() and all(
            same_values(value, found[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(map(same_values, wanted, found))
    inside, other = (torch.utils._pytree.tree_leaves(value) for value in (wanted, found))
    if (
        len(inside) != 1 or inside[0] is not wanted
    ):  # a container that PyTorch knows, as jagged tensors
        return type(wanted) is type(found) and same_values(inside, other)
    return _same_plain(wanted, found)


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal, NaN included."""
    if (a.dtype, a.shape, a.device, a.layout) != (b.dtype, b.shape, b.device, b.layout):
        return False
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()) or a.layout != torch.strided:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _same_plain(a: Any, b: Any) -> bool:
    """Tell whether two values that are no tensors are equal; so are objects that cannot tell."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    silent: Any = object.__eq__
    if type(a).__eq__ is silent and type(b).__eq__ is silent:
        return type(a) is type(b)
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # arrays and classes of tensors answer with many values
        return type(a) is type(b)
