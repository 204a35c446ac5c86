"""Turns of a thread: as long as they are wanted, and their owner is held."""

import gc
import threading
import weakref

import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.background import Turns, in_background

PATIENCE_S = 60


class Owner:
    """Counts its turns."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self.itself = self  # a cycle, as owners may be in

    def turn(self) -> None:
        self.came.release()


def test_an_owner_that_is_dropped_ends_its_turns() -> None:
    owner = Owner()
    turns, came, gone = Turns(owner, Owner.turn, 0.001), owner.came, weakref.ref(owner)
    assert came.acquire(timeout=PATIENCE_S)
    del owner
    for _ in range(100):  # a turn may be under way
        gc.collect()
        turns._thread.join(0.05)
        if not turns._thread.is_alive():
            break
    assert gone() is None
    assert not turns._thread.is_alive()


def test_turns_end_where_they_are_stopped() -> None:
    owner = Owner()
    turns = Turns(owner, Owner.turn, 0.001)
    assert owner.came.acquire(timeout=PATIENCE_S)
    turns.stop()
    assert not turns._thread.is_alive()
    with pytest.raises(GraceError, match="interval_s"):
        Turns(owner, Owner.turn, 0)


def test_work_is_waited_for_and_tells_what_it_found() -> None:
    assert in_background(lambda: threading.current_thread().name) == "grace-refresh"
    with pytest.raises(KeyError):
        in_background(lambda: {}["nothing"])
