"""What the verbs are called with: one clear error where it is something else.

Flow: api.py asks before anything is read or changed.
"""

import math
import threading
from numbers import Integral, Real
from typing import Any

from grace_torchrec.errors import GraceError


def expect(verb: str, name: str, value: object, kind: type) -> None:
    """Refuse a value that is no ``kind``.

    Args:
        verb: Who was called.
        name: Its argument.
        value: What was given.
        kind: What is expected.

    Raises:
        GraceError: the value is something else.
    """
    if not isinstance(value, kind):
        raise GraceError(f"{verb}: {name} is {told(value)}; {_with_article(kind)} is expected")


def expect_number(
    verb: str,
    name: str,
    value: object,
    least: float,
    most: float = math.inf,
    *,
    whole: bool = False,
) -> None:
    """Refuse a value that is no finite number, or one out of range.

    Args:
        verb: Who was called.
        name: Its argument.
        value: What was given.
        least: Least value.
        most: Largest value.
        whole: It must be an integer.

    Raises:
        GraceError: the value is something else.
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if is_number and least <= value <= most and value < math.inf:  # type: ignore[operator]
        return
    span = f"from {least:g} to {most:g}" if most < math.inf else f"of {least:g} or more"
    kind = "an integer" if whole else "a number"
    raise GraceError(f"{verb}: {name} must be {kind} {span}, got {value!r}")


def expect_seconds(verb: str, name: str, value: object) -> None:
    """Refuse what is no time above 0 that a thread can wait.

    Raises:
        GraceError: the value is something else.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 < value <= threading.TIMEOUT_MAX:  # type: ignore[operator]
        raise GraceError(f"{verb}: {name} is {value!r}; give seconds above 0")


def expect_model(verb: str, model: object) -> None:
    """Refuse a model that is no ``nn.Module``.

    Raises:
        GraceError: it is something else.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise GraceError(f"{verb}: model is {told(model)}; an nn.Module is expected")


def expect_batches(verb: str, batches: Any) -> None:
    """Refuse what holds no batches, and a single batch where several are expected.

    Raises:
        GraceError: it cannot be gone through, or is one KeyedJaggedTensor or one batch that holds one.
    """
    if hasattr(batches, "lengths_or_none"):
        raise GraceError(f"{verb}: batches is one KeyedJaggedTensor; pass a list of batches")
    if isinstance(batches, tuple):  # as loaders yield one
        is_bags = [hasattr(part, "lengths_or_none") for part in batches]
        if any(is_bags) and not all(is_bags) and not any(map(_is_group, batches)):
            raise GraceError(f"{verb}: batches is one batch; pass a list of batches")
    if not hasattr(batches, "__iter__"):
        raise GraceError(
            f"{verb}: batches is {told(batches)}; a list or another iterable is expected"
        )


def _is_group(value: object) -> bool:
    """Tell a batch of several arguments from an argument."""
    return isinstance(value, tuple | list | dict)


def told(value: object) -> str:
    """Say what a value is, in a few words."""
    return "None" if value is None else _with_article(type(value))


def _with_article(kind: type) -> str:
    """Return the name of a type behind its article."""
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"
