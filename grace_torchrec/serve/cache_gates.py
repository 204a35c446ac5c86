"""Cache gates: a row cache is changed by one batch at a time, unless a scheduler keeps it on one stream.

Flow: LiveModel.compute -> *CacheGates* of the model that computes -> its lookups.
A module says by ``mutable_resources`` (names) that a call changes a cache.  Batches that share streams are
kept apart by their scheduler, so they pass together; a batch that runs whole (its own worker's, the stock
model's, the shadow's) passes alone.  A model without such a cache has no gates.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


class CacheGate:
    """Lets many pass together, or one alone; who comes first passes first, so nobody waits for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False
        self._waiting: deque[object] = deque()

    @contextmanager
    def passed(self, *, alone: bool) -> Iterator[None]:
        """Wait until it is free, and hold it.

        Args:
            alone: With nobody else.
        """
        turn = object()

        def is_free() -> bool:
            """Tell whether the turn has come."""
            return self._waiting[0] is turn and not (self._alone or (alone and self._together))

        with self._changed:
            self._waiting.append(turn)
            try:
                self._changed.wait_for(is_free)
            finally:  # also where the wait is interrupted
                self._waiting.remove(turn)
                self._changed.notify_all()
            self._alone = alone
            self._together += not alone
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._together -= not alone
                self._changed.notify_all()


class CacheGates:
    """The gates of one model, one for each cache.

    Args:
        model: Its modules name the caches; None: there is none.
        known: Gates of caches of these names that others pass too.
    """

    def __init__(self, model: nn.Module | None, known: Mapping[str, CacheGate]) -> None:
        modules = () if model is None else model.modules()
        names = {name for one in modules for name in getattr(one, "mutable_resources", ())}
        self.gates = {name: known.get(name) or CacheGate() for name in sorted(names)}
        self._gpus = frozenset[torch.device]()
        if model is not None and names:
            numbers = (*model.parameters(), *model.buffers())
            self._gpus = frozenset(number.device for number in numbers if number.is_cuda)

    @contextmanager
    def passed(self, *, alone: bool) -> Iterator[None]:
        """Hold all of them, always in the same order.

        On a GPU what was launched is waited for, also where the model raises after it: the caches
        are changed once that has run.
        """
        with ExitStack() as held:
            for gate in self.gates.values():
                held.enter_context(gate.passed(alone=alone))
            try:
                yield
            finally:
                for gpu in self._gpus:
                    torch.cuda.current_stream(gpu).synchronize()
