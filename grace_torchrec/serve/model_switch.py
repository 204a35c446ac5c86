"""Model switch: which model answers now, changed between batches.

Flow: ``Engine.replace``, ``use_stock`` -> *ModelSwitch* -> each batch holds what answers it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.serve.live_model import LiveModel
from grace_torchrec.serve.shared_streams import SharedStreams


class ModelSwitch:
    """What answers; may be used from any thread.

    Args:
        served: The model.
        stock: Its stock twin, or None.
        streams: What batches in flight share, or None.

    Attributes:
        live: What the next batch is computed with.
        with_stock: Whether its stock twin is to answer.
        replaced: How often the model was replaced.

    Raises:
        NotSupported: a model is in training mode, or it cannot share the streams.
    """

    def __init__(
        self, served: nn.Module, stock: nn.Module | None, streams: SharedStreams | None = None
    ) -> None:
        self.streams, self.with_stock, self.replaced = streams, False, 0
        self.live = self._sharing(served, stock)
        self._here = threading.local()  # holds: this thread computes with the live model

    @contextmanager
    def held(self) -> Iterator[tuple[LiveModel, bool]]:
        """Hold the model that answers now for a batch; tell whether its stock twin is to answer."""
        while True:
            live = self.live
            with live.used():
                if live is self.live:  # else it was replaced before it was held
                    self._here.holds = True
                    try:
                        live.wait_for_caches()
                        yield live, self.with_stock
                    finally:
                        self._here.holds = False
                    return

    @property
    def answering(self) -> nn.Module:
        """The model that answers a request which comes now: what is served, or its stock twin."""
        live = self.live
        return live.stock if self.with_stock and live.stock is not None else live.model

    def is_held_here(self) -> bool:
        """Tell whether this thread computes a batch, or segments of one."""
        on_stream = self.streams is not None and self.streams.has(threading.current_thread())
        return on_stream or getattr(self._here, "holds", False)

    def replace(self, served: nn.Module, stock: nn.Module | None) -> LiveModel:
        """Let another model answer from the next batch on; return the old one.

        Args:
            served: The new model.
            stock: Its stock twin; None: the one there was.

        Raises:
            NotSupported: a model is in training mode, or it cannot share the streams.
        """
        old = self.live
        new = self._sharing(served, old.stock if stock is None else stock)
        new.follow(old)
        self.live = new
        self.replaced += 1
        return old

    def use_stock(self, on: bool) -> None:
        """Let the stock twin answer, or the model itself again.

        Raises:
            NotSupported: there is no stock model.
        """
        if on and self.live.stock is None:
            raise NotSupported("engine: there is no stock model; pass stock=model to Engine")
        self.with_stock = on

    def _sharing(self, served: nn.Module, stock: nn.Module | None) -> LiveModel:
        """Return a model that shares the streams, if batches share any."""
        live = LiveModel(served, stock)
        if self.streams is not None:
            live.share(self.streams)
        return live
