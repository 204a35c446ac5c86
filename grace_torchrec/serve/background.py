"""Background: work beside requests, on threads of the lowest priority.

Flow: Refresher -> *in_background*, *Turns*.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from grace_torchrec.arguments import expect_seconds
from grace_torchrec.priority import lower_priority

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> T:
    """Do something on a thread of low priority, wait for it, and return what it returns.

    Raises:
        BaseException: what the work raises.
    """
    done: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        """Work."""
        try:
            lower_priority()
            done.append(work())
        except BaseException as error:  # for the caller
            raised.append(error)

    thread = threading.Thread(target=run, name="grace-refresh", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return done[0]


class Turns(Generic[T]):
    """A thread of low priority that does something every so many seconds.

    It holds its owner only while it works: it ends with an owner that is let go of.

    Args:
        owner: Whose turns these are.
        work: Called with the owner; it must not raise, nor hold the owner.
        interval_s: Above 0.

    Raises:
        GraceError: ``interval_s`` is out of range.
    """

    def __init__(self, owner: T, work: Callable[[T], None], interval_s: float) -> None:
        expect_seconds("Refresher", "interval_s", interval_s)
        self._stopping = threading.Event()
        arguments = weakref.ref(owner), work, interval_s, self._stopping
        self._thread = threading.Thread(
            target=_take_turns, args=arguments, name="grace-refresher", daemon=True
        )
        weakref.finalize(owner, self._stopping.set).atexit = False
        self._thread.start()

    def stop(self) -> None:
        """End it after the turn under way."""
        self._stopping.set()
        self._thread.join()


def _take_turns(
    held: "weakref.ref[T]",
    work: Callable[[T], None],
    interval_s: float,
    stopping: threading.Event,
) -> None:
    """Work in turns until it is to stop, or nobody holds the owner."""
    lower_priority()
    while not stopping.wait(interval_s):
        owner = held()
        if owner is None:
            return
        work(owner)
        del owner
