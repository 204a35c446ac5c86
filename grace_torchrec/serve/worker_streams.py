"""Worker streams: on a GPU each batch in flight goes to a stream of its own.

Flow: request submitted (inputs ready on the caller's stream) -> *WorkerStream* -> the lowered model,
whose stream 0 is the current one -> answers, safe on the caller's stream.
On a CPU the thread that computes is the stream, and nothing is to be done.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grace_torchrec.serve.request_queue import Request


def ready_event(device: torch.device) -> Any:
    """Return what says when a request's inputs are there: (event, the caller's stream), or None."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    return stream.record_event(), stream


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model: that of its first GPU tensor, else the CPU."""
    tensors = (*model.parameters(), *model.buffers())
    return next((t.device for t in tensors if t.device.type == "cuda"), torch.device("cpu"))


class WorkerStream:
    """One of the streams of an engine; one batch computes on it at a time.

    Args:
        number: Its number.
        device: Of the model.
    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self.stream: Any = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def computing(self, requests: Sequence[Request]) -> Iterator[None]:
        """Make the stream current; inputs are ready in it, results at the end.

        Also a batch that raises ends only once the stream is done: its inputs are freed then.
        """
        if self.stream is None:
            yield
            return
        try:
            with torch.cuda.stream(self.stream):
                for request in requests:
                    if request.ready is not None:
                        self.stream.wait_event(request.ready[0])
                yield
        finally:
            self.stream.synchronize()

    def hand_over(self, answer: Any, request: Request) -> None:
        """Keep an answer's memory until the caller's stream has used it."""
        if self.stream is None or request.ready is None:
            return
        for leaf in torch.utils._pytree.tree_leaves(answer):
            if isinstance(leaf, Tensor) and leaf.is_cuda:
                leaf.record_stream(request.ready[1])
