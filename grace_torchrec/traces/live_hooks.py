"""Live hooks: what a module is called with, told to a recorder.

Flow: recorder -> *LiveHook* on each module that takes bags -> ``observe``.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grace_torchrec.traces.live_batches import bags_of_call

Observe = Callable[..., None]
_here = threading.local()  # ``shown``: what this thread tells itself, hooks need not


def shown_here(observe: Observe | None) -> None:
    """Let hooks of a recorder tell nothing on this thread from now on.

    For threads whose owner shows the recorder every batch: a batch would count twice, or, where
    it is tried again or computed for a comparison, more often.

    Args:
        observe: Of the recorder; None: hooks of all recorders tell what they hear.
    """
    _here.shown = observe


def told_here() -> Observe | None:
    """Return what was given to :func:`shown_here` on this thread, for threads that work for it."""
    observe: Observe | None = getattr(_here, "shown", None)
    return observe


def _nobody(*_: Any) -> None:
    """Stand for a recorder beside which no other is told."""


@contextmanager
def unheard_here() -> Iterator[None]:
    """Let hooks of all recorders tell nothing on this thread: nobody asked for what is computed."""
    before = told_here()
    shown_here(_nobody)
    try:
        yield
    finally:
        shown_here(before)


class LiveHook:
    """A forward pre-hook; copies and pickles of it tell nobody, compiled graphs leave it out.

    Args:
        observe: Takes bags, and the names of the tables they are for.
        names: Of the tables of the module.
    """

    def __init__(self, observe: Observe | None, names: tuple[str, ...]) -> None:
        self.observe, self.names = observe, names

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell what a module is called with."""
        if torch.compiler.is_compiling():
            return
        told = told_here()
        if told is _nobody or self.observe in (None, told):
            return
        for bags in bags_of_call(args, kwargs):
            self.observe(bags, self.names)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LiveHook":
        """Return a hook that tells nobody."""
        return LiveHook(None, self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a hook that tells nobody."""
        return LiveHook, (None, self.names)
