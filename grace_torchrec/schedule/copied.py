"""Copied: the tensors inside a batch, found, and copied with the containers and objects around them.

Flow: example -> *cloned* -> a run, which may write its inputs; node's value -> *tensors_in* -> its
memory.  Objects without tensors (locks, handles, settings) stay those of the caller: nothing says
that they can be copied.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

DEPTH = 3  # of objects inside objects that are searched for tensors


def tensors_in(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """Yield the tensors of a value: in containers, and in the attributes of plain objects.

    Args:
        value: Anything.
        depth: Of objects in objects that are searched.
    """
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif depth and not isinstance(leaf, nn.Module | type):
            inside = leaf if isinstance(leaf, Mapping) else _attributes(leaf)
            yield from tensors_in(list(inside.values()), depth - 1)


def cloned(example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a batch of its own memory, for a model may write its inputs.

    Containers, and objects that hold tensors, are new ones; what cannot be copied is shared.

    Args:
        example: Positional arguments; what is one tensor, or one memory, in it stays one.
    """
    memo: dict[int, Any] = {}

    def own(tensor: Tensor) -> Tensor:
        """Copy a tensor; one that was computed with gradients cannot be as it is."""
        return copy.deepcopy(tensor if tensor.is_leaf else tensor.detach(), memo)

    with torch.inference_mode(False), torch.no_grad():
        found: tuple[Any, ...] = copied(example, own, memo)
    return found


def copied(
    value: Any,
    of_tensor: Callable[[Tensor], Tensor],
    memo: dict[int, Any] | None = None,
    depth: int = DEPTH,
) -> Any:
    """Return a value with other tensors.

    Args:
        value: Anything.
        of_tensor: Returns what stands for a tensor.
        memo: What was copied: id -> copy, and stays one; default: each place gets its own.
        depth: Of objects in objects that are searched.
    """
    if memo is not None and id(value) in memo:
        return memo[id(value)]
    try:
        made = of_tensor(value) if isinstance(value, Tensor) else value
        if _is_around_tensors(value, depth):
            made = _around(value, lambda part, less: copied(part, of_tensor, memo, depth - less))
    except Exception:  # a class may refuse to be copied, in any way
        made = value
    if memo is not None:
        memo[id(value)] = made
    return made


def _is_around_tensors(value: Any, depth: int) -> bool:
    """Tell a container, and an object that holds tensors, from what is left as it is."""
    if isinstance(value, Tensor | nn.Module | type):
        return False
    if isinstance(value, dict | list | tuple):
        return True
    return depth > 0 and (is_dataclass(value) or any(True for _ in tensors_in(value, depth)))


def _around(value: Any, part_of: Callable[[Any, int], Any]) -> Any:
    """Copy what lies around tensors; ``part_of`` a part: 1 for one of an object."""
    if isinstance(value, tuple):
        parts = [part_of(part, 0) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    made = copy.copy(value)
    if isinstance(value, dict):
        made.update({key: part_of(part, 0) for key, part in value.items()})
    elif isinstance(value, list):
        made[:] = [part_of(part, 0) for part in value]
    for name, part in _attributes(value).items():
        object.__setattr__(made, name, part_of(part, 1))  # also of a frozen class
    return made


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those of a dataclass with slots too."""
    found = dict(getattr(value, "__dict__", {}))
    if is_dataclass(value):
        names = (field.name for field in fields(value) if hasattr(value, field.name))
        found |= {name: getattr(value, name) for name in names}
    return found
