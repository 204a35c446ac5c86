"""Containers: the dicts, lists and tuples that nest the parts of requests and answers.

Flow: whatever joins, splits or cuts nested values asks here how to put the new parts together.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any


def is_known(value: Any) -> bool:
    """Tell a container that its keys and parts make again from one that may know more."""
    known = (dict, OrderedDict, defaultdict, list, tuple)
    return type(value) in known or hasattr(value, "_fields")


def remade(value: Any, parts: Iterable[Any]) -> Any:
    """Return a container of the type of another one, with other parts.

    Args:
        value: A dict, list or tuple.
        parts: One for each of its own, in its order.

    >>> remade(defaultdict(list, a=1, b=2), [3, 4])
    defaultdict(<class 'list'>, {'a': 3, 'b': 4})
    """
    if isinstance(value, defaultdict):
        return type(value)(value.default_factory, zip(value, parts, strict=True))
    if isinstance(value, dict):
        return type(value)(zip(value, parts, strict=True))
    return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
