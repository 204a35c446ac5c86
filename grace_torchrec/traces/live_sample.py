"""Live sample: the bags of all tables of a model, drawn batch by batch.

Flow: recorder -> *LiveSample.offer* -> a reservoir of each table -> :meth:`LiveSample.held`.
A batch that no bag is drawn from costs a look into its keys and one subtraction for all tables
together (with a half-life: a microsecond for each table); its arrays are not read.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.live_batches import LiveBatch, LiveTable
from grace_torchrec.traces.profile import TableProfile
from grace_torchrec.traces.recorder_files import HalfLives, Held, supported, trace_of
from grace_torchrec.traces.recorder_stats import Losses
from grace_torchrec.traces.reservoir import Entry, NextDraw, Reservoir, SampledBag

BAG_BYTES = 512  # of a bag beside its ids: objects of Python, measured by a test
MOST_LAYOUTS = 64  # of features in batches, remembered


@dataclass(frozen=True)
class Limits:
    """What is held at most.

    Attributes:
        bags: Of each table.
        ids: Of each table.
        bag_ids: Of a bag; longer ones are counted.
        share: Of the bags that are drawn, at most.
    """

    bags: int
    ids: int
    bag_ids: int
    share: float


class Now(NamedTuple):
    """What is held of a table at a moment; the fields of ``Reservoir``."""

    entries: list[Entry]
    bags_seen: int
    limit: float
    base: float


@dataclass(eq=False)
class Layout:
    """The tables whose features all are in batches of certain keys.

    Attributes:
        tables: Each with its sample and the places of its features.
        waiting: Bags of each feature that passed and are in no ``bags_seen`` yet.
        hazards: Of one bag of each feature of a table.
        hazard: All of them together.
        as_of: Draws so far, and the bags that a bag stood for, when ``hazard`` was added up.
    """

    tables: list[tuple[LiveTable, Reservoir, tuple[int, ...]]]
    waiting: int = 0
    hazards: list[float] = field(default_factory=list)
    hazard: float = 0.0
    as_of: tuple[int, int] = (-1, 0)


class LiveSample:
    """Reservoirs of all tables; not safe from two threads at once.

    Args:
        tables: By name.
        limits: Of each table.
        half_lives: What bags weigh.
        source: Of all draws.
        losses: Counts what was drawn and cannot be held.
    """

    def __init__(
        self,
        tables: Mapping[str, LiveTable],
        limits: Limits,
        half_lives: HalfLives,
        source: random.Random,
        losses: Losses,
    ) -> None:
        self.tables, self.half_lives, self._limits, self._losses = (
            tables,
            half_lives,
            limits,
            losses,
        )
        self._draw, self._draws = NextDraw(source), 0
        self.reservoirs = {
            name: Reservoir(limits.bags, limits.ids, limits.share, self._draw) for name in tables
        }
        self._layouts: dict[tuple[tuple[str, ...], tuple[str, ...]], Layout] = {}

    @property
    def max_bytes(self) -> int:
        """Most bytes that all bags take."""
        return sum(
            self._limits.bags * BAG_BYTES + self._limits.ids * table.id_bytes
            for table in self.tables.values()
        )

    def count(self) -> tuple[int, int, int, int]:
        """Return bags seen, bags held, ids held, and about how many bytes these are."""
        self._settle()
        held = list(self.reservoirs.items())
        bags = sum(len(one.entries) for _, one in held)
        size = sum(self.tables[name].id_bytes * one.num_ids for name, one in held)
        seen, ids = sum(one.bags_seen for _, one in held), sum(one.num_ids for _, one in held)
        return seen, bags, ids, bags * BAG_BYTES + size

    def offer(self, batch: LiveBatch, names: tuple[str, ...], times: int, now: float) -> None:
        """Let the bags of a batch pass, and hold those that are drawn.

        Args:
            batch: One batch.
            names: Of the tables it is for.
            times: Batches that it, or the part of it that is offered, stands for.
            now: Seconds since the epoch.
        """
        layout, bags, draw = self._layout(batch.keys, names), batch.samples, self._draw
        hazards = self._hazards(layout, times, now)
        if layout.hazard * bags < draw.hazard_left:
            draw.hazard_left -= layout.hazard * bags
        else:
            for number, (table, held, places) in enumerate(layout.tables):
                if hazards[number] * bags < draw.hazard_left:
                    draw.hazard_left -= hazards[number] * bags
                    continue
                age, take = self._age(held, now), partial(self._taken, batch, table, places, now)
                held.offer(len(places) * bags, age, take, times)
                hazards[number] = len(places) * held.hazard(age, times)
            self._draws += 1
            layout.as_of, layout.hazard = (self._draws, times), sum(hazards)
        layout.waiting += bags * times

    def copy(self) -> dict[str, Now]:
        """Return what is held now of each table, to be looked at later."""
        self._settle()
        return {
            name: Now(list(held.entries), held.bags_seen, held.limit, held.base)
            for name, held in self.reservoirs.items()
        }

    def go_on_from(self, saved: Mapping[str, Held]) -> None:
        """Hold what was held when it was saved."""
        for name, one in saved.items():
            held = self.reservoirs[name]
            held.bags_seen, held.limit, held.base = one.bags_seen, one.limit, one.base
            for entry in one.entries:
                held.add(-entry.minus_key, entry.bag)
        self._draws += 1

    def _age(self, held: Reservoir, now: float) -> float:
        """Return the half-lives that have gone by in the stream of a table."""
        if self.half_lives.bags is not None:
            return held.bags_seen / self.half_lives.bags
        return now / self.half_lives.seconds if self.half_lives.seconds is not None else 0.0

    def _hazards(self, layout: Layout, times: int, now: float) -> list[float]:
        """Return the hazards of a layout: those of before, unless something changed."""
        if layout.as_of != (self._draws, times) or self.half_lives != (None, None):
            self._settle()
            layout.as_of = self._draws, times
            layout.hazards = [
                len(places) * held.hazard(self._age(held, now), times)
                for _, held, places in layout.tables
            ]
            layout.hazard = sum(layout.hazards)
        return layout.hazards

    def _settle(self) -> None:
        """Count the bags that passed since the last draw."""
        for layout in self._layouts.values():
            if layout.waiting:
                for _, held, places in layout.tables:
                    held.bags_seen += len(places) * layout.waiting
                layout.waiting = 0

    def _taken(
        self, batch: LiveBatch, table: LiveTable, places: tuple[int, ...], now: float, number: int
    ) -> SampledBag | None:
        """Copy the bag ``number`` of a table in a batch; None where it is not to be held."""
        feature, sample = divmod(number, batch.samples)
        try:
            ids, weights = batch.bag(places[feature], sample, table)
        except GraceError as error:
            self._losses.add("refused", error)
            return None
        if ids.size > self._limits.bag_ids:
            self._losses.add("too_long")
        if not 0 < ids.size <= self._limits.bag_ids:
            return None
        narrow = "int32" if table.num_rows <= 2**31 else "int64"
        return SampledBag(ids.astype(narrow), None if weights is None else weights.copy(), now)

    def _layout(self, keys: tuple[str, ...], names: tuple[str, ...]) -> Layout:
        """Return the tables of these whose features all are in a batch, and where."""
        found = self._layouts.get((keys, names))
        if found is None:
            place = {key: number for number, key in enumerate(keys)}
            tables = [self.tables[name] for name in names]
            found = Layout([
                (table, self.reservoirs[table.name], tuple(place[key] for key in table.features))
                for table in tables
                if all(key in place for key in table.features)
            ])  # fmt: skip
            if len(self._layouts) >= MOST_LAYOUTS:
                self._settle()
                self._layouts.clear()
            self._layouts[keys, names] = found
        return found


def held_of(now: Now, table: LiveTable, min_support: int, since_s: float | None) -> Held:
    """Return the bags of a moment as a profile, in the order in which they came, without rare items.

    Args:
        now: What was held.
        table: Of which table.
        min_support: Items in fewer of all these bags are left out.
        since_s: Only bags that came after this time.
    """
    entries = sorted(now.entries, key=lambda entry: entry.number)
    trace, alive = supported(trace_of(entries, table), min_support)
    left = [entries[bag] for bag in alive]
    if since_s is not None:
        late = [bag for bag, entry in enumerate(left) if entry.bag.seen_s > since_s]
        trace, left = (
            replace(trace.take(np.array(late, np.int64)), note=trace.note),
            [left[bag] for bag in late],
        )
    return Held(TableProfile(trace, table.features), left, now.bags_seen, now.limit, now.base)
