"""Deltas during a refresh: what is published while a new model is made, and how it catches up.

Flow: Refresher.publish_delta -> *DeltaLog* -> the new model, before it is proven and before it answers.
"""

import threading
from typing import Any

import numpy as np
import torch

from grace_torchrec.serve.delta import Delta, publish_delta
from grace_torchrec.serve.served import Served


class DeltaLog:
    """Keeps what a new model misses; its ``lock`` is held by whoever publishes or flips.

    Attributes:
        lock: Held around every call but :meth:`begin` and :meth:`end`.
        came: A delta came since the new model caught up.
        version: Of what is served, as far as deltas were published here.
    """

    def __init__(self) -> None:
        self.lock, self.came, self.version = threading.Lock(), threading.Event(), 0
        self._missed: list[Delta] | None = None  # since a rebuild read the rows; None: none does

    def begin(self, served: Served | None) -> None:
        """A rebuild reads the rows from here on.

        Args:
            served: What is served, whose version is that before the first delta it misses.
        """
        with self.lock:
            self._missed, self.version = [], 0 if served is None else served.version

    def end(self) -> None:
        """The rebuild is done, or given up."""
        with self.lock:
            self._missed = None

    def note(self, delta: Delta, version: int) -> None:
        """A delta was published; it is copied, for its arrays are the caller's.

        Args:
            delta: What was published.
            version: Of what is served now.
        """
        self.version = version
        if self._missed is not None:
            self._missed.append(
                {name: (_copy(ids), _copy(rows)) for name, (ids, rows) in delta.items()}
            )
            self.came.set()

    def catch_up(self, served: Served) -> int:
        """Publish to a new model what it missed; return how many deltas that were."""
        self.came.clear()
        missed, self._missed = self._missed or [], []
        for delta in missed:
            publish_delta(served, delta)
        return len(missed)


def _copy(part: Any) -> Any:
    """Return a tensor or array of its own."""
    return part.detach().clone() if isinstance(part, torch.Tensor) else np.array(part)
