"""Cache gates: a row cache is changed by one batch at a time, unless a scheduler keeps it on one stream.

Flow: LiveModel.compute -> *CacheGates* of the model that computes -> its lookups.
A module says by ``mutable_resources`` (names) that a call changes a cache.  Batches that share streams are
kept apart by their scheduler, so they pass together; a batch that runs whole (its own worker's, the stock
model's, the shadow's) passes alone.  A model without such a cache has no gates.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


class CacheGate:
    """Lets many pass together, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False

    @contextmanager
    def passed(self, *, alone: bool) -> Iterator[None]:
        """Wait until it is free, and hold it.

        Args:
            alone: With nobody else.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or (alone and self._together)))
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

    @contextmanager
    def passed(self, *, alone: bool) -> Iterator[list[Any]]:
        """Hold all of them, always in the same order; yield a list for the output.

        On a GPU what was launched is waited for: the caches are changed once that has run.
        """
        output: list[Any] = []
        with ExitStack() as held:
            for gate in self.gates.values():
                held.enter_context(gate.passed(alone=alone))
            yield output
            if self.gates and any(
                isinstance(x, torch.Tensor) and x.is_cuda for x in _leaves(output)
            ):
                torch.cuda.current_stream().synchronize()


def _leaves(output: list[Any]) -> list[Any]:
    """Return the tensors of an output, those of a KeyedTensor too."""
    leaves = tree_leaves(output)
    return [leaf.values() if hasattr(leaf, "length_per_key") else leaf for leaf in leaves]
