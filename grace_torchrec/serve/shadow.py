"""Shadow: a share of the live requests is answered a second time, and both answers are compared.

Flow: answered requests, sampled -> a thread of its own -> the other model -> *ShadowCounts*.
No request waits for it: what comes while it has enough to do is left out, and counted.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedTensor

Compute = Callable[[tuple[Any, ...]], Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worst:
    """The request whose answers differed most.

    Attributes:
        difference: Largest absolute difference; infinite where shapes or missing numbers differ.
        batch: The request.
        answer: What was answered.
        other: What the other model answered.
        models: What answered, and what it was compared with: ``ours`` and ``stock``, or the reverse.
    """

    difference: float
    batch: tuple[Any, ...] = field(repr=False)  # whole batches: nobody reads them in a log
    answer: Any = field(repr=False)
    other: Any = field(repr=False)
    models: tuple[str, str]


@dataclass(frozen=True)
class ShadowCounts:
    """What comparing has found so far.

    Attributes:
        compared: Requests compared.
        different: Those that differ by more than the tolerance.
        failed: Requests that the other model could not answer.
        left_out: Requests that were drawn and not compared, for there was too much to do.
        worst_difference: The largest difference; 0 before the first.
        worst: Its request; None before the first difference.
    """

    compared: int = 0
    different: int = 0
    failed: int = 0
    left_out: int = 0
    worst_difference: float = 0.0
    worst: Worst | None = None


class Shadow:
    """Compares a share of requests on a thread of its own.

    Args:
        share: Share of the requests, above 0 and at most 1.
        tolerance: Largest absolute difference of equal answers.
        waiting_most: Requests that wait to be compared, at most.
        seed: Of the draw.
    """

    def __init__(
        self, share: float, tolerance: float, waiting_most: int = 64, seed: int = 0
    ) -> None:
        self.share, self.tolerance, self.waiting_most = share, tolerance, waiting_most
        self.counts = ShadowCounts()
        self._random = random.Random(seed)
        self._waiting: deque[tuple[tuple[Any, ...], Any, Compute, bool]] = deque()
        self._changed = threading.Condition()
        self._comparing = self._closed = False
        self._left_out = 0
        self._thread = threading.Thread(target=self._work, name="grace-shadow", daemon=True)
        self._thread.start()

    def draws(self) -> bool:
        """Draw whether a request is to be compared."""
        return self._random.random() < self.share

    def offer(self, batch: tuple[Any, ...], answer: Any, other: Compute, *, by_stock: bool) -> None:
        """Hand over an answered request; never waits.

        Args:
            batch: The request.
            answer: Its answer.
            other: Answers it by the other model.
            by_stock: The stock model has answered.
        """
        with self._changed:
            if self._closed or len(self._waiting) >= self.waiting_most:
                self._left_out += 1
                return
            self._waiting.append((batch, answer, other, by_stock))
            self._changed.notify_all()

    def snapshot(self) -> ShadowCounts:
        """Return what was found so far."""
        counts = self.counts
        return ShadowCounts(**{**vars(counts), "left_out": self._left_out})

    def is_on(self, thread: threading.Thread) -> bool:
        """Tell whether a thread is the one that compares."""
        return thread is self._thread

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything handed over was compared; False: that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._comparing), timeout_s)

    def close(self) -> None:
        """Compare what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        """Compare one request after the other."""
        while True:
            with self._changed:
                self._comparing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                batch, answer, other, by_stock = self._waiting.popleft()
                self._comparing = True
            self.counts = self._compared(batch, answer, other, by_stock)
            del batch, answer, other  # nothing of a request stays while the thread waits

    def _compared(
        self, batch: tuple[Any, ...], answer: Any, other: Compute, by_stock: bool
    ) -> ShadowCounts:
        """Answer a request by the other model; return the counts with it."""
        counts = vars(self.counts).copy()
        try:
            wanted = other(batch)
            difference = largest_difference(answer, wanted)
        except Exception:  # whatever the other model raises: it is counted, serving goes on
            logger.debug("shadow: a request could not be compared", exc_info=True)
            return ShadowCounts(**{**counts, "failed": self.counts.failed + 1})
        counts["compared"] += 1
        counts["different"] += not difference <= self.tolerance
        if difference > self.counts.worst_difference:
            counts["worst_difference"] = difference
            models = ("stock", "ours") if by_stock else ("ours", "stock")
            counts["worst"] = Worst(difference, batch, answer, wanted, models)
        return ShadowCounts(**counts)


def copied(answer: Any) -> Any:
    """Return an answer in memory of its own: whoever gets the other may write into it.

    Args:
        answer: Tensors and KeyedTensors in mappings, lists and tuples, which become plain dicts and
            tuples: not every type of them can be made anew.  Anything else is kept.
    """
    if isinstance(answer, Tensor):
        return answer.clone()
    if isinstance(answer, KeyedTensor):
        return KeyedTensor(
            answer.keys(), answer.length_per_key(), answer.values().clone(), answer.key_dim()
        )
    if isinstance(answer, Mapping):
        return {key: copied(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return tuple(copied(value) for value in answer)
    return answer


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest absolute difference of two answers.

    Args:
        a: Tensors and KeyedTensors in mappings, lists and tuples.
        b: The same structure; infinity is returned where it is not, or where a number is missing
            in one of them only.
    """
    if isinstance(a, KeyedTensor) and isinstance(b, KeyedTensor):
        same = a.keys() == b.keys() and a.length_per_key() == b.length_per_key()
        return largest_difference(a.values(), b.values()) if same else float("inf")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _of_tensors(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return float("inf")
        return max((largest_difference(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            return float("inf")
        return max((largest_difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if a is b or bool(a == b) else float("inf")


def _of_tensors(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    wide = [t.detach().to("cpu", torch.float64) for t in (a, b)]
    equal = (wide[0] == wide[1]) | (wide[0].isnan() & wide[1].isnan())
    apart = torch.where(equal, 0.0, (wide[0] - wide[1]).abs())
    return float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
