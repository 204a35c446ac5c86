"""Background: work beside requests, on threads of the lowest priority.

Flow: Refresher -> *in_background*, *Turns*.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

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


class Turns:
    """A thread of low priority that does something every so many seconds.

    Args:
        work: What it does; it must not raise.
        interval_s: Above 0.

    Raises:
        GraceError: ``interval_s`` is out of range.
    """

    def __init__(self, work: Callable[[], None], interval_s: float) -> None:
        expect_seconds("Refresher", "interval_s", interval_s)
        self._work, self._interval_s = work, interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grace-refresher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it after the turn under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        """Work in turns."""
        lower_priority()
        while not self._stopping.wait(self._interval_s):
            self._work()
