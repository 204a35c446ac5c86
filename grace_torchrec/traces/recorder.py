"""Recorder: a bounded sample of the bags that a live model is asked for.

Flow: requests -> *TraceRecorder* -> Profile -> plans, drift, refresh.
It stands beside the requests and never in their way: a batch is handed over only if nobody else
holds the recorder at that moment (else it is dropped and counted), nothing it raises reaches a
request, what is not sampled is not read, and its time is a bounded share of the wall time
(``recorder_budget``).  Files are written by a thread of its own.
Minimum support: an item that fewer than ``min_support`` sampled bags hold is in no profile handed
out and in no file.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from numbers import Real
from typing import Any, cast

from grace_torchrec import artifact
from grace_torchrec.arguments import expect, expect_model, expect_number
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.live_batches import LiveBatch, bags_of_call, live_places
from grace_torchrec.traces.live_hooks import LiveHook
from grace_torchrec.traces.live_sample import Limits, LiveSample, held_of
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.recorder_arguments import check_options
from grace_torchrec.traces.recorder_budget import FREE_LOOKS, Budget
from grace_torchrec.traces.recorder_files import HalfLives, Held, load_held, save_held
from grace_torchrec.traces.recorder_stats import Losses, RecorderStats
from grace_torchrec.traces.snapshots import Snapshots
from grace_torchrec.traces.steady_clock import steady_time

BAGS_A_LOOK = 64  # of all features, once a look stands for several batches: about a millisecond


class TraceRecorder:
    """Samples whole bags of every table; calling ``observe`` is safe from any number of threads.

    Args:
        model: Its collections name tables and features: stock, swapped, sharded, or Served.
        max_bags: Most bags held of each table.
        max_ids: Most ids held of each table.
        max_bag_ids: Longer bags are not held, but counted.
        max_overhead: Share of the wall time that requests may wait for the recorder, above 0 and
            below 1: after the first 200, whole batches pass unseen for it, and those that are seen
            stand for them.
            None: every batch is looked at, as to record a set of batches that has an end.
        share: Share of the bags that is offered to the sample, above 0 and up to 1.
        half_life_bags: After so many bags of a table a bag weighs twice; None: all weigh the same.
        half_life_s: The same by seconds; one of the two at most.
        min_support: Items in fewer sampled bags are in no profile and in no file.
        seed: Of the draws.
        clock: Seconds since the epoch.

    Attributes:
        model: Whose bags are sampled.
        min_support: See above.
        clock: See above.

    Raises:
        NotSupported: the model holds no collection, or two tables of the same name.
        GraceError: the model is none, or a number is out of range.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_bags: int = 8192,
        max_ids: int = 1 << 20,
        max_bag_ids: int = 1 << 14,
        max_overhead: float | None = 0.005,
        share: float = 1.0,
        half_life_bags: float | None = None,
        half_life_s: float | None = None,
        min_support: int = 2,
        seed: int = 0,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        expect_model("TraceRecorder", model)
        check_options(
            max_bags=max_bags, max_ids=max_ids, max_bag_ids=max_bag_ids, min_support=min_support,
            max_overhead=max_overhead, share=share, half_lives=(half_life_bags, half_life_s),
            seed=seed,
        )  # fmt: skip
        self.model, self.min_support, self.clock = model, min_support, clock
        half_lives = HalfLives(*(
            half if half and isfinite(half) else None for half in (half_life_bags, half_life_s)
        ))  # fmt: skip
        source = random.Random(int(seed))
        tables = {table.name: table for place in live_places(model) for table in place.tables}
        self._names = tuple(tables)
        self._losses = Losses()
        limits = Limits(max_bags, max_ids, max_bag_ids, share)
        self._sample = LiveSample(tables, limits, half_lives, source, self._losses)
        self._budget = Budget(max_overhead, random.Random(source.random()), free=FREE_LOOKS)
        self._parts = random.Random(source.random())
        self._one_at_a_time = threading.Lock()
        self._hooks, self._snapshots = list[Any](), cast(Snapshots | None, None)

    @property
    def max_bytes(self) -> int:
        """Most bytes that the sample of all tables takes."""
        return self._sample.max_bytes

    @property
    def stats(self) -> RecorderStats:
        """What was seen, kept and lost."""
        losses, written = self._losses, self._snapshots
        with self._one_at_a_time:
            seen, bags, ids, size = self._sample.count()
            passed, spent_s = self._budget.passed, self._budget.spent_s
        return RecorderStats(
            bags_seen=seen,
            bags_held=bags,
            ids_held=ids,
            bytes_held=size,
            batches_passed=passed,
            seconds_spent=spent_s,
            batches_dropped=losses.dropped,
            batches_failed=losses.failed,
            bags_too_long=losses.too_long,
            bags_refused=losses.refused,
            last_error=(written.error if written else "") or losses.last_error,
            snapshots=written.written if written else 0,
        )

    def attach(self) -> "TraceRecorder":
        """Record what the collections of the model are called with from now on; return self.

        After ``detach`` or ``close`` it records again, into the same sample.
        Call it again after ``accelerate_``, ``restore_`` or DistributedModelParallel put other
        modules into the model.  Copies of a hooked module are not recorded.

        Raises:
            NotSupported: the model holds no collection any more.
        """
        self.detach()
        for place in live_places(self.model):
            names = tuple(t.name for t in place.tables if t.name in self._sample.tables)
            hook = LiveHook(self.observe, names)
            self._hooks.append(place.module.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def follow(self, old: Any, new: Any) -> None:
        """Go on with ``new`` where ``old`` is what is recorded by hooks."""
        if self._hooks and self.model is old:
            self.model = new
            self.attach()

    def detach(self) -> None:
        """Record no more by hooks; what was sampled stays."""
        while self._hooks:
            self._hooks.pop().remove()

    def observe(self, batch: Any, tables: Iterable[str] | None = None) -> None:
        """Let a batch pass by; never raises, and never waits for another thread.

        Args:
            batch: A KeyedJaggedTensor, or a batch rewritten ahead.
            tables: Names of the tables it is for; default: all whose features it has.
        """
        try:
            if not self._one_at_a_time.acquire(blocking=False):
                self._losses.add("dropped")
                return
            try:
                if not self._budget.passes():
                    self._look(batch, self._names if tables is None else tuple(tables))
            finally:
                self._one_at_a_time.release()
        except Exception as error:
            self._losses.add("failed", error)

    def profile(self, *, min_support: int | None = None, since_s: float | None = None) -> Profile:
        """Return the sampled bags of every table, in the order in which they came.

        Args:
            min_support: Items in fewer of all sampled bags are left out; default: the recorder's.
            since_s: Only bags that came after this time, by the recorder's ``clock``.

        Raises:
            GraceError: one of them is no such number.
        """
        least = self.min_support if min_support is None else min_support
        expect_number("recorder.profile", "min_support", least, 1, whole=True)
        if since_s is not None:
            expect("recorder.profile", "since_s", since_s, Real)
        return Profile({name: held.profile for name, held in self._held(least, since_s).items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample as a profile folder, whole or not at all.

        ``Profile.load`` reads it; :meth:`resume` goes on from it.  Folders that are missing above it are
        made.

        Raises:
            GraceError: ``path`` is something else, or cannot be written.
        """
        save_held(path, self._held(self.min_support, None), self._sample.half_lives)

    def snapshots(self, path: str | os.PathLike[str], interval_s: float = 60.0) -> "TraceRecorder":
        """Save every ``interval_s`` seconds from a thread of its own; return self.

        After the process was killed the last snapshot is whole: an interval is lost at most.

        Args:
            path: The folder; nobody else may write there.
            interval_s: Above 0.

        Raises:
            GraceError: it runs already, ``interval_s`` is out of range, or no profile folder can
                stand at ``path``.  What fails later is in ``stats.last_error`` and in the log.
        """
        before = self._snapshots
        if before is not None and not before.is_closed:
            raise GraceError("recorder: snapshots are taken already; close() first")
        artifact.expect_place(path, "profile")
        written = before.written if before else 0
        self._snapshots = Snapshots(self.save, path, interval_s, written)
        return self

    def close(self) -> None:
        """Detach, and write a last snapshot where snapshots are taken; what was sampled stays.

        A pause, not an end: ``attach`` and ``snapshots`` may be called again and go on.

        Raises:
            GraceError: the last snapshot failed; the rest is done.
        """
        self.detach()
        if self._snapshots is not None:
            self._snapshots.close()

    def __enter__(self) -> "TraceRecorder":
        """Return self."""
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Close; what an error of the block would hide, a last snapshot that failed, is in the log."""
        try:
            self.close()
        except GraceError:
            if kind is None:
                raise

    @classmethod
    def resume(cls, path: str | os.PathLike[str], model: Any, **options: Any) -> "TraceRecorder":
        """Go on from what :meth:`save` or a snapshot wrote.

        Bags, their keys and how many were seen are as they were; draws begin anew.

        Args:
            path: The folder; one that a killed writer left beside its place is put back.
            model: With the same tables.
            options: As for the class; the half-life is that of the recorder that wrote it.

        Raises:
            GraceError: the folder is damaged, is a profile that no recorder wrote, or one with
                another half-life did.
            PlanMismatch: the model has other tables.
        """
        recorder = cls(model, **options)
        sample = recorder._sample
        sample.go_on_from(load_held(path, sample.tables, sample.half_lives))
        return recorder

    def _look(self, batch: Any, names: tuple[str, ...]) -> None:
        """Offer every bag of a batch to the sample of its table; the time is counted."""
        try:
            for bags in bags_of_call((batch,), {}):
                live, times = LiveBatch(bags), self._budget.times
                if (
                    times > 1
                ):  # the more it stands for, the more of its bags are held: not all at once
                    times *= live.keep_part(BAGS_A_LOOK, self._parts)
                self._sample.offer(live, names, times, self.clock())
        finally:
            self._budget.looked()

    def _held(self, min_support: int, since_s: float | None) -> Mapping[str, Held]:
        """Return what is held now; requests that come meanwhile are dropped for a moment."""
        with self._one_at_a_time:
            now = self._sample.copy()
        tables = self._sample.tables
        return {name: held_of(one, tables[name], min_support, since_s) for name, one in now.items()}
