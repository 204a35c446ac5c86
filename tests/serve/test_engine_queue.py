"""A full queue looks through what waits only if something of it can leave."""

import math
import time

import pytest
import torch

from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.serve.request_queue import DeadlineExceeded, Rejected, Request, RequestQueue


def request(deadline_s: float | None = None) -> Request:
    batch = (torch.zeros(1),)
    now_s = time.perf_counter()
    return Request(batch, form_of(batch), now_s, None if deadline_s is None else now_s + deadline_s)


class Looks(RequestQueue):
    """A queue for two requests that counts how often it looks through them."""

    def __init__(self) -> None:
        super().__init__(max_queue=2, max_batch=8, max_wait_s=0, others_busy=lambda: False)
        self.looks = 0

    def _make_room(self):
        self.looks += 1
        return super()._make_room()


@pytest.fixture
def full() -> tuple[Looks, Request]:
    queue, first = Looks(), request(3600)
    queue.put(first)
    queue.put(request())
    return queue, first


def rejected(queue: RequestQueue) -> None:
    assert queue.make_room() is None
    with pytest.raises(Rejected, match="2 requests wait already"):
        queue.put(request())


def test_a_rejection_does_not_look_through_what_waits(full) -> None:
    queue, _ = full
    for _ in range(3):
        rejected(queue)
    assert queue.looks == 0


def test_a_cancelled_request_makes_room_once(full) -> None:
    queue, first = full
    assert first.future.cancel()
    gone = queue.make_room()
    assert gone is not None
    assert gone.cancelled == 1
    queue.put(request())
    rejected(queue)
    assert queue.looks == 1


def test_a_late_request_makes_room_once(full) -> None:
    queue, _ = full
    queue.take()
    late = request(-1)
    queue.put(late)
    queue.put(request())
    gone = queue.make_room()
    assert gone is not None
    assert gone.expired == [late]
    queue.put(request())
    rejected(queue)
    assert queue.looks == 1


def test_deadlines_of_requests_that_were_taken_are_forgotten(full) -> None:
    queue, _ = full
    queue.take()
    queue.put(request())
    assert queue._earliest_s == math.inf


def test_a_future_that_its_caller_settled_takes_no_other_along(full) -> None:
    queue, _ = full
    queue.take()
    late, kept = request(-1), request()
    queue.put(late)
    queue.put(kept)
    late.future.set_result("of the caller's own")
    gone = queue.make_room()
    assert gone is not None
    assert (gone.expired, gone.cancelled) == ([], 1)
    settled = request()
    queue.put(settled)
    settled.future.set_exception(ValueError())
    taken = queue.take()
    assert taken is not None
    assert (taken.requests, taken.cancelled) == ([kept], 1)


def test_a_late_request_is_told_also_if_the_next_one_is_rejected(double) -> None:
    model = double()
    with Engine(model, max_queue=2) as engine:
        first = model.held_by(engine)
        late = engine.submit(torch.tensor([1.0]), deadline_s=0)
        waits, again = engine.submit(torch.tensor([2.0])), request()
        assert again.future.set_running_or_notify_cancel()
        again.started = True
        engine._queue.put_back([again])  # of a worker that ended: two wait beside it already
        with pytest.raises(Rejected):
            engine.submit(torch.tensor([3.0]))
        told_at_once = late.done()
        model.free.set()
        assert told_at_once
        assert isinstance(late.exception(), DeadlineExceeded)
        assert [f.result(60).tolist() for f in (first, again.future, waits)] == [[200], [0], [4]]
    told = engine.metrics.snapshot()
    assert (told.accepted, told.answered, told.expired, told.rejected) == (3, 3, 1, 1)
