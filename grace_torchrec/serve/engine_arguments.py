"""What an engine is called with: one clear error where it is something else.

Flow: Engine, submit, drain, close -> *here*, before anything is changed.
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import nn

from grace_torchrec.arguments import expect_number, told
from grace_torchrec.errors import GraceError
from grace_torchrec.serve.served import Served


def check_counts(**counts: int) -> None:
    """Refuse an argument that counts nothing.

    Raises:
        GraceError: one is no integer of 1 or more.
    """
    for name, count in counts.items():
        expect_number("Engine", name, count, 1, whole=True)


def check_seconds(call: str, name: str, seconds: Any) -> None:
    """Refuse what is no time; one that is over, or without end, is one.

    Args:
        call: What was called.
        name: Its argument.
        seconds: What was given; None is as long as it takes.

    Raises:
        GraceError: it is something else.
    """
    if seconds is None:
        return
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not is_number or math.isnan(seconds):
        raise GraceError(f"{call}: {name} is {seconds!r}; give seconds, or None")


def refuse_no_arguments(model: nn.Module) -> None:
    """Refuse a request without arguments to a model that takes some.

    Args:
        model: What answers.

    Raises:
        GraceError: its ``forward`` does not go without.
    """
    inner = model.model if isinstance(model, Served) else model
    try:
        signature = inspect.signature(inner.forward)
    except (TypeError, ValueError):  # of compiled code: the model itself says so
        return
    try:
        signature.bind()
    except TypeError as error:
        raise GraceError(
            f"request: no argument has rows, for there is none; {type(inner).__name__} takes "
            f"{signature}: pass its positional arguments"
        ) from error


def observer_of(recorder: Any) -> Callable[[Any], None] | None:
    """Return what is shown every batch; None: nobody is.

    Raises:
        GraceError: the recorder has no ``observe``, or is a class.
    """
    if recorder is None:
        return None
    observe = getattr(recorder, "observe", None)
    is_class = isinstance(recorder, type)
    if is_class or not callable(observe):
        what = "a class" if is_class else f"{told(recorder)} without observe()"
        raise GraceError(f"Engine: recorder is {what}; pass TraceRecorder(model)")
    found: Callable[[Any], None] = observe
    return found
