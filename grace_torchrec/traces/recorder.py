"""Recorder: a bounded sample of the bags that a live model is asked for.

Flow: requests -> *TraceRecorder* -> Profile -> plans, drift, refresh.
It stands beside the requests and never in their way: a batch is handed over only if nobody else
holds the recorder at that moment (else it is dropped and counted), nothing it raises reaches a
request, and what is not sampled is not read.  Files are written by a thread of its own.
Minimum support: an item that fewer than ``min_support`` sampled bags hold is in no profile handed
out and in no file.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Any, cast

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.live_batches import LiveBatch, LiveTable, bags_of_call, live_places
from grace_torchrec.traces.live_hooks import LiveHook
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.recorder_files import (
    HalfLives,
    Held,
    load_held,
    save_held,
    supported,
    trace_of,
)
from grace_torchrec.traces.recorder_stats import Losses, RecorderStats
from grace_torchrec.traces.reservoir import Reservoir, SampledBag
from grace_torchrec.traces.snapshots import Snapshots

BAG_BYTES = 512  # of a bag beside its ids: objects of Python, measured by a test
MOST_LAYOUTS = 64  # of features in batches, remembered


class TraceRecorder:
    """Samples whole bags of every table; calling ``observe`` is safe from any number of threads.

    Args:
        model: Its collections name tables and features: stock, swapped, sharded, or Served.
        max_bags: Most bags held of each table.
        max_ids: Most ids held of each table.
        max_bag_ids: Longer bags are not held, but counted.
        share: Share of the bags that is offered to the sample, above 0 and up to 1.
        half_life_bags: After so many bags of a table a bag weighs twice; None: all weigh the same.
        half_life_s: The same by seconds; one of the two at most.
        min_support: Items in fewer sampled bags are in no profile and in no file.
        seed: Of the draws.
        clock: Seconds since the epoch.

    Raises:
        NotSupported: the model holds no collection, or two tables of the same name.
        GraceError: a number is out of range.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_bags: int = 8192,
        max_ids: int = 1 << 20,
        max_bag_ids: int = 1 << 14,
        share: float = 1.0,
        half_life_bags: float | None = None,
        half_life_s: float | None = None,
        min_support: int = 2,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if min(max_bags, max_ids, max_bag_ids, min_support) < 1 or max_bag_ids > max_ids:
            raise GraceError(
                "recorder: give max_bags, max_ids, max_bag_ids and min_support of 1 or more, and "
                f"max_bag_ids <= max_ids; got {max_bags}, {max_ids}, {max_bag_ids}, {min_support}"
            )
        if not 0 < share <= 1:
            raise GraceError(f"recorder: share is {share}; give a number above 0, up to 1")
        halves = [half for half in (half_life_bags, half_life_s) if half is not None]
        if len(halves) > 1 or any(not half > 0 for half in halves):
            raise GraceError("recorder: give one half-life, of bags or of seconds, above 0")
        self.model, self.min_support, self.max_bag_ids = model, min_support, max_bag_ids
        finite = [
            half if half and isfinite(half) else None for half in (half_life_bags, half_life_s)
        ]
        self._half_lives, self._clock = HalfLives(*finite), clock
        source = random.Random(seed)
        self._tables = {t.name: t for place in live_places(model) for t in place.tables}
        self._names = tuple(self._tables)
        self._held = {
            name: Reservoir(max_bags, max_ids, share, random.Random(source.random()))
            for name in self._tables
        }
        self._layouts: dict[tuple[tuple[str, ...], tuple[str, ...]], _Layout] = {}
        self._one_at_a_time = threading.Lock()
        self._losses = Losses()
        self._hooks, self._snapshots = list[Any](), cast(Snapshots | None, None)

    @property
    def max_bytes(self) -> int:
        """Most bytes that the sample of all tables takes."""
        sizes = [(self._tables[name].id_bytes, held) for name, held in self._held.items()]
        return sum(held.max_bags * BAG_BYTES + held.max_ids * size for size, held in sizes)

    @property
    def stats(self) -> RecorderStats:
        """What was seen, kept and lost."""
        sizes = [(self._tables[name].id_bytes, held) for name, held in self._held.items()]
        bags = sum(len(held.entries) for _, held in sizes)
        losses, written = self._losses, self._snapshots
        return RecorderStats(
            bags_seen=sum(held.bags_seen for _, held in sizes),
            bags_held=bags,
            ids_held=sum(held.num_ids for _, held in sizes),
            bytes_held=bags * BAG_BYTES + sum(size * held.num_ids for size, held in sizes),
            batches_dropped=losses.dropped,
            batches_failed=losses.failed,
            bags_too_long=losses.too_long,
            bags_refused=losses.refused,
            last_error=(written.error if written else "") or losses.last_error,
            snapshots=written.written if written else 0,
        )

    def attach(self) -> "TraceRecorder":
        """Record what the collections of the model are called with from now on; return self.

        Call it again after ``accelerate_``, ``restore_`` or DistributedModelParallel put other
        modules into the model.  Copies of a hooked module are not recorded.

        Raises:
            NotSupported: the model holds no collection any more.
        """
        self.detach()
        for place in live_places(self.model):
            names = tuple(t.name for t in place.tables if t.name in self._tables)
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
                for bags in bags_of_call((batch,), {}):
                    self._offer(LiveBatch(bags), self._names if tables is None else tuple(tables))
            finally:
                self._one_at_a_time.release()
        except Exception as error:
            self._losses.add("failed", error)

    def profile(self, *, min_support: int | None = None, since_s: float | None = None) -> Profile:
        """Return the sampled bags of every table, in the order in which they came.

        Args:
            min_support: Items in fewer of these bags are left out; default: the recorder's.
            since_s: Only bags that came after this time, seconds since the epoch.
        """
        least = self.min_support if min_support is None else min_support
        return Profile({name: held.profile for name, held in self._sampled(least, since_s).items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample as a profile folder, whole or not at all.

        ``Profile.load`` reads it; :meth:`resume` goes on from it.

        Raises:
            GraceError: ``path`` is something else, or cannot be written.
        """
        save_held(path, self._sampled(self.min_support, None), self._half_lives)

    def snapshots(self, path: str | os.PathLike[str], interval_s: float = 60.0) -> "TraceRecorder":
        """Save every ``interval_s`` seconds from a thread of its own; return self.

        After the process was killed the last snapshot is whole: an interval is lost at most.

        Args:
            path: The folder; nobody else may write there.
            interval_s: Above 0.

        Raises:
            GraceError: it runs already, or ``interval_s`` is out of range.
        """
        before = self._snapshots
        if before is not None and not before.is_closed:
            raise GraceError("recorder: snapshots are taken already; close() first")
        written = before.written if before else 0
        self._snapshots = Snapshots(self.save, path, interval_s, written)
        return self

    def close(self) -> None:
        """Detach, and write a last snapshot where snapshots are taken; both may begin again."""
        self.detach()
        if self._snapshots is not None:
            self._snapshots.close()

    def __enter__(self) -> "TraceRecorder":
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

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
        for name, saved in load_held(path, recorder._tables, recorder._half_lives).items():
            held = recorder._held[name]
            held.bags_seen, held.limit, held.base = saved.bags_seen, saved.limit, saved.base
            for entry in saved.entries:
                held.add(-entry.minus_key, entry.bag)
        return recorder

    def _offer(self, batch: LiveBatch, names: tuple[str, ...]) -> None:
        """Offer every bag of a batch to the sample of its table."""
        now = self._clock()
        for table, places in self._layout(batch.keys, names):
            held = self._held[table.name]
            half_lives = 0.0
            if self._half_lives.bags is not None:
                half_lives = held.bags_seen / self._half_lives.bags
            elif self._half_lives.seconds is not None:
                half_lives = now / self._half_lives.seconds
            take = partial(self._taken, batch, table, places, now)
            held.offer(len(places) * batch.stride, half_lives, take)

    def _taken(
        self, batch: LiveBatch, table: LiveTable, places: tuple[int, ...], now: float, number: int
    ) -> SampledBag | None:
        """Copy the bag ``number`` of a table in a batch; None where it is not to be held."""
        feature, sample = divmod(number, batch.stride)
        try:
            ids, weights = batch.bag(places[feature], sample, table)
        except GraceError as error:
            self._losses.add("refused", error)
            return None
        if ids.size > self.max_bag_ids:
            self._losses.add("too_long")
        if not 0 < ids.size <= self.max_bag_ids:
            return None
        narrow = "int32" if table.num_rows <= 2**31 else "int64"
        kept = None if weights is None else weights.astype("float32")
        return SampledBag(ids.astype(narrow), kept, now)

    def _layout(self, keys: tuple[str, ...], names: tuple[str, ...]) -> "_Layout":
        """Return the tables of these whose features all are in a batch, and where."""
        found = self._layouts.get((keys, names))
        if found is None:
            place = {key: number for number, key in enumerate(keys)}
            tables = [self._tables[name] for name in names]
            found = [
                (table, tuple(place[feature] for feature in table.features))
                for table in tables
                if all(feature in place for feature in table.features)
            ]
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[keys, names] = found
        return found

    def _sampled(self, min_support: int, since_s: float | None) -> Mapping[str, Held]:
        """Return what is held now; requests that come meanwhile are dropped for a moment."""
        with self._one_at_a_time:
            now = {
                name: (list(held.entries), held.bags_seen, held.limit, held.base)
                for name, held in self._held.items()
            }
        sampled = {}
        for name, (entries, seen, limit, base) in now.items():
            table = self._tables[name]
            kept = [e for e in entries if since_s is None or e.bag.seen_s > since_s]
            kept.sort(key=lambda entry: entry.number)
            trace, alive = supported(trace_of(kept, table), min_support)
            left = [kept[bag] for bag in alive]
            sampled[name] = Held(TableProfile(trace, table.features), left, seen, limit, base)
        return sampled


_Layout = list[tuple[LiveTable, tuple[int, ...]]]
