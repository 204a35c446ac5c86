"""Background: work beside requests, on threads of the lowest priority.

Flow: Refresher -> *in_background*, *Turns*.
"""

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from grace_torchrec.arguments import expect_seconds
from grace_torchrec.priority import lower_priority

T = TypeVar("T")
logger = logging.getLogger(__name__)


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
        is_held: Something holds the owner that ends with what it works for; else an owner that is
            let go of before it is stopped was perhaps meant to be held, and it is logged.

    Raises:
        GraceError: ``interval_s`` is out of range.
    """

    def __init__(
        self, owner: T, work: Callable[[T], None], interval_s: float, *, is_held: bool = False
    ) -> None:
        expect_seconds("Refresher", "interval_s", interval_s)
        self._stopping = threading.Event()
        arguments = weakref.ref(owner), work, interval_s, self._stopping
        self._thread = threading.Thread(
            target=_take_turns, args=arguments, name="grace-refresher", daemon=True
        )
        weakref.finalize(owner, _let_go, self._stopping, is_held).atexit = False
        self._thread.start()

    def stop(self) -> None:
        """End it after the turn under way."""
        self._stopping.set()
        self._thread.join()


def _let_go(stopping: threading.Event, is_held: bool) -> None:
    """End the turns of an owner that is gone."""
    if not (stopping.is_set() or is_held):
        logger.warning(
            "Refresher: nobody holds it any more, so it looks no more; keep it, as in "
            "refresher = Refresher(..).start(..), or call stop() first"
        )
    stopping.set()


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
