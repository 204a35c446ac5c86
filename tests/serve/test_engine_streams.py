"""On a GPU everything that touches a batch happens on its stream; here a fake one notes the order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grace_torchrec.serve import answering, workers
from grace_torchrec.serve import engine as engine_module
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.serve.request_queue import Request
from grace_torchrec.serve.worker_streams import WorkerStream

PATIENCE_S = 60


class Notes(list[str]):
    """What happened, in order."""

    def noting(self, name: str, call: Any = None) -> Any:
        def noted(*args: Any, **named: Any) -> Any:
            self.append(name)
            return None if call is None else call(*args, **named)

        return noted


class FakeStream:
    """A worker's stream that notes when it is current."""

    notes: Notes

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number

    @contextmanager
    def computing(self, requests: list[Request]) -> Iterator[None]:
        self.notes.append("inputs ready")
        yield
        self.notes.append("stream done")

    def hand_over(self, answer: Any, request: Request) -> None:
        self.notes.append("handed over")


def test_a_gpu_joins_prepares_computes_and_splits_on_the_stream(monkeypatch) -> None:
    notes = FakeStream.notes = Notes()

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            notes.append("compute")
            return x * 2

    monkeypatch.setattr(engine_module, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(engine_module, "ready_event", lambda device: None)
    monkeypatch.setattr(workers, "WorkerStream", FakeStream)
    for name in ("join", "split"):
        monkeypatch.setattr(answering, name, notes.noting(name, getattr(answering, name)))
    prepare = answering.LiveModel.prepare
    monkeypatch.setattr(answering.LiveModel, "prepare", notes.noting("prepare", prepare))
    with Engine(Double().eval()) as engine:  # an empty request: a blank row is split off
        assert engine.submit(torch.zeros(0, 3)).result(PATIENCE_S).shape == (0, 3)
    assert notes == [
        "inputs ready", *("join", "prepare", "compute") * 2, "split", "stream done", "handed over"
    ]  # fmt: skip


def test_an_answer_that_cannot_be_handed_over_is_that_requests_own_failure(
    monkeypatch, double
) -> None:
    class Refuses(FakeStream):
        def hand_over(self, answer: Tensor, request: Request) -> None:
            if 6 in answer:
                raise RuntimeError("no memory left")

    Refuses.notes = Notes()
    monkeypatch.setattr(workers, "WorkerStream", Refuses)
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(torch.tensor([k])) for k in (1.0, 2.0, 3.0)]
        model.free.set()
        assert [future.result(PATIENCE_S).tolist() for future in (first, *futures[:2])] == [
            [200], [2], [4],
        ]  # fmt: skip
        with pytest.raises(RuntimeError, match="no memory left"):
            futures[2].result(PATIENCE_S)
    told = engine.metrics.snapshot()
    assert (told.answered, told.failed, told.restarts) == (3, 1, 0)
    assert (told.batches, told.rows) == (3, 3)  # those that were handed over


def test_a_batch_that_raises_keeps_its_inputs_until_the_stream_is_done(monkeypatch) -> None:
    notes = Notes()

    class Stream:
        wait_event = staticmethod(notes.noting("inputs ready"))
        synchronize = staticmethod(notes.noting("synchronised"))

    @contextmanager
    def current(stream: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "stream", current)
    stream = WorkerStream(0, torch.device("cpu"))
    stream.stream = Stream()
    batch = (torch.zeros(1),)
    request = Request(batch, form_of(batch), 0.0, ready=("an event", None))
    with pytest.raises(ValueError, match="a bad batch"), stream.computing([request]):
        raise ValueError("a bad batch")
    assert notes == ["inputs ready", "synchronised"]
