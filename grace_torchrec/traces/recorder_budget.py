"""Recorder budget: which batches a recorder looks at, so that its time stays a share of the wall time.

Flow: recorder asks *Budget* before it touches a batch -> it passes unseen, or stands for ``times``.
Derived.  A look costs time: a debt, which is paid off by ``max_overhead`` of the wall time that goes
by.  After a look the chance of each later batch to be the next one looked at is ``1 / times``, with
``times`` such that the mean wait pays the debt off.  Which one it is, is drawn before any of them has
come, so it depends on nothing that is in them; and a batch that is looked at stands for ``times``, so
that every bag weighs the same in the mean, however often batches of its time were looked at.
What is not spent is not saved up: a quiet night allows no burst of looks in the morning.
The first looks are free, once: who tries a recorder on a few batches finds them in the profile.
"""

import math
import random
import time
from collections.abc import Callable

PAUSE_S = 0.1  # a longer gap counts as this: nobody asked.  A look waits for others no longer
FREE_LOOKS = 200  # of a recorder: some tenths of a second, once
MOST_RISE = 4  # times the stretch before: one odd measurement neither blinds nor outweighs
REMEMBERED = 64  # calls behind the mean gap, at least half as many


class Budget:
    """Counts time and draws; not safe from two threads at once.

    Args:
        max_overhead: Share of the wall time, above 0 and below 1; None: look at every batch.
        source: Of the draws.
        clock: Seconds, never going back.
        thread_clock: Seconds that this thread computed.
        free: Looks that nothing is paid for.

    Attributes:
        times: Batches that the next one looked at stands for.
        passed: Batches that passed unseen.
        spent_s: Seconds that looks took.
    """

    def __init__(
        self,
        max_overhead: float | None,
        source: random.Random,
        clock: Callable[[], float] = time.perf_counter,
        thread_clock: Callable[[], float] = time.thread_time,
        free: int = 0,
    ) -> None:
        self.times, self.passed, self.spent_s = 1, 0, 0.0
        self._share, self._source = max_overhead, source
        self._clock, self._thread_clock = clock, thread_clock
        self._to_pass, self._free = 0, free
        self._debt_s = 0.0
        self._wall_s, self._calls = 0.0, 0  # since the last look
        self._gaps_s, self._gaps = 0.0, 0.0  # remembered
        self._now = clock()
        self._computed = 0.0

    def passes(self) -> bool:
        """Note that a batch is there; tell whether it passes unseen.  If not, call :meth:`looked`."""
        if self._share is None:
            return False
        before, self._now = self._now, self._clock()
        self._wall_s += min(self._now - before, PAUSE_S)
        self._calls += 1
        if self._to_pass:
            self._to_pass -= 1
            self.passed += 1
            return True
        self._computed = self._thread_clock()
        return False

    def looked(self) -> None:
        """Note that a batch was looked at; draw how many pass before the next."""
        if self._share is None:
            return
        # A thread that did not run was stopped, as by a debugger: that is no cost of the recorder.
        computed = self._thread_clock() - self._computed
        took = min(self._clock() - self._now, computed + PAUSE_S)
        self.spent_s += took
        if self._free:
            self._free -= 1
            took = 0.0
        self._debt_s = max(0.0, self._debt_s - self._share * self._wall_s) + took
        self._gaps_s, self._gaps = self._gaps_s + self._wall_s, self._gaps + self._calls
        pays_s = self._share * self._gaps_s / self._gaps
        if self._gaps > REMEMBERED:
            self._gaps_s, self._gaps = self._gaps_s / 2, self._gaps / 2
        self._wall_s, self._calls = 0.0, 0
        most = MOST_RISE * self.times
        self.times = math.ceil(min(most, max(1.0, self._debt_s / pays_s))) if pays_s > 0 else most
        self._to_pass = _failures(self.times, self._source)


def _failures(times: int, source: random.Random) -> int:
    """Draw how often something of chance ``1 / times`` does not happen before it does."""
    if times == 1:
        return 0
    return int(math.log(1.0 - source.random()) / math.log1p(-1.0 / times))
