"""Live model: what an engine answers with now, its stock twin, and who still computes with it.

Flow: Engine and ``replace`` -> *LiveModel*, one after the other -> batches.  A batch keeps the model
it began with; the old one is let go of when its last batch is done.
Bags for tables planned ``ahead`` are rewritten here, on the worker's thread, before the model's turn.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules.rewrite_ahead import Modules, rewrite_one, takes_rewritten
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.serve.cache_gates import CacheGates
from grace_torchrec.serve.row_dims import RowDims
from grace_torchrec.serve.segmented_model import caches_of, serving
from grace_torchrec.serve.shared_streams import SharedStreams


class LiveModel:
    """A model in eval mode and the stock model beside it.

    Args:
        model: What answers: a Served, or any module.
        stock: The stock model, or None.

    Attributes:
        ahead: Every collection that takes rewritten bags, by path, if one has tables planned
            ``ahead``: a rewritten batch goes to all.  Empty where none has.
        row_dims: Where the rows of its outputs are, and of those of the stock model.
        caches: What its batches change on shared streams; empty where they share none.

    Raises:
        NotSupported: a model is in training mode.
    """

    def __init__(self, model: nn.Module, stock: nn.Module | None) -> None:
        for name, module in (("model", model), ("stock", stock)):
            if module is not None and module.training:
                raise NotSupported(f"engine: {name} is in training mode; call {name}.eval() first")
        self.model, self.stock = model, stock
        self.row_dims = RowDims(), RowDims()
        self.caches: frozenset[str] = frozenset()
        own = CacheGates(model, {})
        self._gates = {False: own, True: CacheGates(stock, own.gates)}
        self._on_shared: Callable[[tuple[Any, ...]], Any] | None = None
        self._earlier: tuple[weakref.ref[LiveModel], ...] = ()
        self.ahead = _rewritten_for(model)
        self._users = 0
        self._changed = threading.Condition()

    def share(self, streams: SharedStreams) -> None:
        """Let batches in flight share streams, segment by segment.

        Raises:
            NotSupported: the model's operators are not scheduled over streams.
        """
        self._on_shared = serving(self.model, streams)
        self.caches = caches_of(self.model)

    def follow(self, old: "LiveModel") -> None:
        """Take the place of a model, whose last batches may be under way, as those before it may."""
        known = {name: gate for gates in old._gates.values() for name, gate in gates.gates.items()}
        own = CacheGates(self.model, known)
        self._gates = {False: own, True: CacheGates(self.stock, known | own.gates)}
        earlier = (weakref.ref(old), *old._earlier)
        self._earlier = tuple(model for model in earlier if model() is not None)

    def wait_for_caches(self) -> None:
        """Wait for the batches of earlier models that use a cache of this one.

        Each model keeps a cache on one stream, and knows nothing of what others chose.
        """
        for model in self._earlier:
            old = model()
            if old is not None and self.caches & old.caches:
                old.wait_until_unused()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Hold the model for a batch."""
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    self._changed.notify_all()

    def wait_until_unused(self) -> None:
        """Wait for the batches that compute with this model."""
        with self._changed:
            self._changed.wait_for(lambda: not self._users)

    def prepare(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Rewrite the bags of a batch for tables planned ahead, unless they come rewritten."""
        if not self.ahead:
            return batch
        bags = [part for part in batch if isinstance(part, KeyedJaggedTensor | RewrittenBatch)]
        if len(bags) != 1 or self._fits(bags[0]):
            return batch  # several: the collections read plain rows, and count it
        rewritten: tuple[Any, ...] = rewrite_one(batch, self.ahead)
        return rewritten

    def compute(
        self, batch: tuple[Any, ...], *, with_stock: bool = False, in_flight: bool = False
    ) -> Any:
        """Return the answer of the model, or of the stock model, to a prepared batch.

        Args:
            batch: Positional arguments.
            with_stock: Ask the stock model.
            in_flight: The batch is one of those that share streams, if any do.
        """
        shares = in_flight and self._on_shared is not None and not with_stock
        with torch.no_grad(), self._gates[with_stock].passed(alone=not shares):
            return self._output(batch, with_stock, shares)

    def _output(self, batch: tuple[Any, ...], with_stock: bool, shares: bool) -> Any:
        """Return the answer; caches that it changes are held."""
        if shares:
            assert self._on_shared is not None
            return self._on_shared(batch)
        if not with_stock:
            return self.model(*batch)
        assert self.stock is not None
        return self.stock(
            *(part.bags if isinstance(part, RewrittenBatch) else part for part in batch)
        )

    def _fits(self, bags: KeyedJaggedTensor | RewrittenBatch) -> bool:
        """Tell bags that were rewritten for this model."""
        return isinstance(bags, RewrittenBatch) and all(
            path in bags.modules and bags.modules[path].stamp == module.rewriter.stamp
            for path, module in self.ahead.items()
        )


def _rewritten_for(model: nn.Module) -> Modules:
    """Return the collections that bags are rewritten for: all, if they are for one."""
    found: Modules = {m.path: m for m in model.modules() if takes_rewritten(m)}
    return found if any(module.has_ahead for module in found.values()) else {}
