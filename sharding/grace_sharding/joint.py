"""Joint choice: one variant for each table, and how far HBM is filled, for the least time together.

Flow: variants of every table + memory -> *Decision* -> placement.  Source: GRACE, ASPLOS'23 (a
request is done when the slower memory is; filling stops where both are busy alike).  Derived: the
search.  A price of an HBM byte and a weight of the two memories take the tables apart (Lagrange):
each picks its best variant by itself.  For a row of weights the price that fills HBM is found, and what
is picked is judged exactly.  Alike tables all change their pick at one weight, so the balance may lie
between two weights: from the best pick, the tables that relieve the busier memory at the least load
for the other go over, as many as balance them.  Then it is improved table by table.  Picks are judged by
the times of :mod:`grace_sharding.stops`.
Shapes: T tables, V variants of all tables, K rungs of all variants, G groups, W resamplings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.stops import Curve, Stop, drawn, draws
from grace_sharding.variants import GROUPS, Floats, Ints, Variant

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)  # of HBM, the rest is of host
BISECTIONS = 24
WORK, TABLE_WORK = 4_000_000, 100  # rungs that the improvement may sort; a table costs so many
HALVINGS = 12  # steps to where the memories balance
ROUNDS = 3  # of balancing, of the improvement
LEAST_ROUND_GAIN = 0.01  # of the time: balancing that won less ends


@dataclass(frozen=True, eq=False)
class Decision:
    """What was picked.

    Attributes:
        picked_T: Number of the variant of each table.
        hbm_bytes: Bytes of HBM to fill.
        slow_share: Share of the fit bags' reads that is then left to host memory, of the rows that
            could be in either.
        time_s: Mean time of the resampled held-out bags, scaled to all of them.
        hbm_read_T: Bytes that all held-out bags read from HBM, by table.
        host_read_T: The same from host memory.
    """

    picked_T: Ints
    hbm_bytes: int
    slow_share: float
    time_s: float
    hbm_read_T: Floats
    host_read_T: Floats


def decide(
    tables: Sequence[Sequence[Variant]],
    memory: MemoryModel,
    starts: Sequence[Ints] = (),
    resample: bool = True,
) -> Decision:
    """Pick a variant for each table.

    Args:
        tables: The variants of each table; the first needs the least memory of all.
        memory: The machine that they share.
        starts: Choices to begin with, beside those found here and the first variants.
        resample: Judge by resampled groups of bags, not by all bags at once.
    """
    search = _Search(tables, memory, draws() if resample else np.ones((1, GROUPS)))
    found = {tuple(np.zeros(len(tables), np.int64)), *map(tuple, starts), *search.priced()}
    judged = {picked: search.judge(np.array(picked)) for picked in sorted(found)}
    best = min(judged, key=lambda picked: judged[picked].time_s)
    picked_T, stop = search.balanced(np.array(best), judged[best])
    picked_T, stop = search.improved(picked_T, stop)
    return search.decision(picked_T, stop)


class _Search:
    """All variants of all tables side by side, and the machine."""

    def __init__(
        self, tables: Sequence[Sequence[Variant]], memory: MemoryModel, draws_WG: Floats
    ) -> None:
        self.draws_WG = draws_WG
        self.hbm_rate = memory.hbm.bytes_per_s if memory.hbm else 1.0
        self.host_rate = memory.host.bytes_per_s
        self.hbm_bytes = memory.hbm.num_bytes if memory.hbm else 0
        self.host_bytes = memory.host.num_bytes
        self.flat = [variant for variants in tables for variant in variants]
        self.sizes_T = np.array([len(variants) for variants in tables], np.int64)
        self.first_T = np.cumsum(self.sizes_T) - self.sizes_T
        self.table_V = np.repeat(np.arange(len(tables)), self.sizes_T)
        self.fixed_V = np.array([v.hbm_bytes for v in self.flat], np.float64)
        self.host_V = np.array([v.host_bytes for v in self.flat], np.float64)
        self.hbm_read_V = np.array([v.hbm_read_G.sum() for v in self.flat])
        reads = [v.rung_read_GK.sum(axis=0) for v in self.flat]
        self.host_read_V = np.array([v.host_read_G.sum() for v in self.flat])
        self.host_read_V += [float(part.sum()) for part in reads]
        busy_V = np.maximum(self.hbm_read_V / self.hbm_rate, self.host_read_V / self.host_rate)
        prices = np.array([v.price for v in self.flat])
        free = (prices == 0) & (self.fixed_V <= self.hbm_bytes)
        stock_T = np.minimum.reduceat(np.where(free, busy_V, np.inf), self.first_T)
        stock_T[np.isinf(stock_T)] = 0.0
        self.price_V = prices * stock_T[self.table_V]
        sizes = np.array([v.bytes_K.size for v in self.flat], np.int64)
        self.variant_K = np.repeat(np.arange(sizes.size), sizes)
        self.bytes_K = np.concatenate([v.bytes_K for v in self.flat])
        self.worth_K = np.concatenate([v.worth_K for v in self.flat])
        self.reads_K = np.concatenate(reads)
        self.drawn = [drawn(v, draws_WG) for v in self.flat]

    def priced(self) -> set[tuple[int, ...]]:
        """What all tables pick at the price that fills HBM, for every weight."""
        found = set()
        for weight in WEIGHTS:
            low, high = 0.0, self._highest(weight)
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                _, wanted = self._by_price(weight, middle)
                low, high = (middle, high) if wanted > self.hbm_bytes else (low, middle)
            found |= {tuple(self._by_price(weight, price)[0].tolist()) for price in (low, high)}
        return found

    def _highest(self, weight: float) -> float:
        """A price at which nobody wants anything."""
        gain = max((1 - weight) / self.host_rate - weight / self.hbm_rate, 0.0)
        most = (self.host_read_V / np.maximum(self.fixed_V, 1.0)).max(initial=0.0)
        return float(1.0001 * gain * max(self.worth_K.max(initial=0.0), most) + 1e-30)

    def _by_price(self, weight: float, byte_s: float) -> tuple[Ints, float]:
        """Let every table pick for itself; return the variants and the HBM bytes they want.

        Args:
            weight: Share of HBM time in what is paid; the rest is host time.
            byte_s: Price of an HBM byte in seconds.
        """
        gain = (1 - weight) / self.host_rate - weight / self.hbm_rate  # of a byte read from HBM
        wanted_K = self.worth_K * gain > byte_s
        won_K = np.where(wanted_K, self.reads_K * gain - byte_s * self.bytes_K, 0.0)
        cost_V = weight * self.hbm_read_V / self.hbm_rate + self.price_V + byte_s * self.fixed_V
        cost_V += (1 - weight) * self.host_read_V / self.host_rate
        cost_V -= np.bincount(self.variant_K, won_K, cost_V.size)
        cost_V[self.fixed_V > self.hbm_bytes] = np.inf
        least_T = np.minimum.reduceat(cost_V, self.first_T)
        best_V = np.flatnonzero(cost_V <= least_T[self.table_V])
        _, where = np.unique(self.table_V[best_V], return_index=True)
        takes_V = self.fixed_V + np.bincount(self.variant_K, wanted_K * self.bytes_K, cost_V.size)
        return best_V[where] - self.first_T, float(takes_V[best_V[where]].sum())

    def judge(self, picked_T: Ints, exact: bool = False) -> Stop:
        """Return the best stop for what was picked; infinite time where it does not fit."""
        variants_T = self.first_T + picked_T
        fixed = self.fixed_V[variants_T].sum()
        if fixed > self.hbm_bytes or self.host_V[variants_T].sum() > self.host_bytes:
            return Stop(np.inf, 0.0, np.inf)
        worth_K = np.concatenate([self.flat[v].worth_K for v in variants_T])
        order = np.argsort(-worth_K, kind="stable")
        sizes_K = np.concatenate([self.flat[v].bytes_K for v in variants_T])[order]
        bytes_K1 = fixed + np.concatenate([np.zeros(1), np.cumsum(sizes_K)])
        steps = [np.sum([self.drawn[v][0] for v in variants_T], axis=0)[None]]
        steps.append(np.concatenate([self.drawn[v][1] for v in variants_T])[order])
        hbm_K1W = np.cumsum(np.concatenate(steps), axis=0)
        host_W = np.sum([self.drawn[v][2] for v in variants_T], axis=0)
        curve = Curve(bytes_K1, hbm_K1W, host_W, self.hbm_rate, self.host_rate)
        stop_bytes, time_s = curve.best(self.hbm_bytes, exact)
        taken = int(np.searchsorted(bytes_K1, stop_bytes, side="left"))
        worth = float(worth_K[order[taken - 1]]) if taken else np.inf
        return Stop(time_s + float(self.price_V[variants_T].sum()), stop_bytes, worth)

    def balanced(self, picked_T: Ints, stop: Stop) -> tuple[Ints, Stop]:
        """Let as many tables relieve the busier memory as make both busy alike."""
        for _ in range(ROUNDS):
            tables, variants = self._reliefs(picked_T, stop.worth)
            hbm_busier = self._hbm_busier(picked_T, stop.worth)
            best = picked_T, stop
            low, high = 0, tables.size + 1
            for _ in range(HALVINGS):
                if high - low < 2:
                    break
                middle = (low + high) // 2
                tried_T = picked_T.copy()
                tried_T[tables[:middle]] = variants[:middle]
                tried = self.judge(tried_T)
                if tried.time_s < best[1].time_s:
                    best = tried_T, tried
                if np.isfinite(tried.time_s) and (
                    self._hbm_busier(tried_T, tried.worth) == hbm_busier
                ):
                    low = middle
                else:
                    high = middle
            won = best[1].time_s < (1 - LEAST_ROUND_GAIN) * stop.time_s
            picked_T, stop = best
            if not won:
                break
        return picked_T, stop

    def _busy(self, worth: float) -> tuple[Floats, Floats]:
        """Seconds that each variant keeps HBM and host memory busy, rungs from a worth on in HBM."""
        in_hbm_K = np.where(self.worth_K >= worth, self.reads_K, 0.0)
        moved_V = np.bincount(self.variant_K, in_hbm_K, self.fixed_V.size)
        return (
            (self.hbm_read_V + moved_V) / self.hbm_rate,
            (self.host_read_V - moved_V) / self.host_rate,
        )

    def _hbm_busier(self, picked_T: Ints, worth: float) -> bool:
        """Tell whether HBM is the busier memory."""
        hbm_V, host_V = self._busy(worth)
        variants_T = self.first_T + picked_T
        return bool(hbm_V[variants_T].sum() > host_V[variants_T].sum())

    def _reliefs(self, picked_T: Ints, worth: float) -> tuple[Ints, Ints]:
        """Return (tables, the variant of each) that relieve the busier memory, the cheapest first.

        A variant is the cheaper the more it relieves for what it loads on the other memory.
        """
        memories = self._busy(worth)
        busier_V, other_V = memories if self._hbm_busier(picked_T, worth) else memories[::-1]
        now_V = (self.first_T + picked_T)[self.table_V]
        relieved_V, loaded_V = busier_V[now_V] - busier_V, other_V - other_V[now_V]
        angle_V = np.arctan2(loaded_V, relieved_V)  # what loads nothing comes first
        angle_V[(relieved_V <= 0) | (self.fixed_V > self.hbm_bytes)] = np.inf
        order = np.lexsort((-relieved_V, angle_V, self.table_V))
        first_V = order[self.first_T]  # tables in turn: the first of each is its best
        first_V = first_V[np.isfinite(angle_V[first_V])]
        first_V = first_V[np.argsort(angle_V[first_V], kind="stable")]
        tables = self.table_V[first_V]
        return tables, first_V - self.first_T[tables]

    def improved(self, picked_T: Ints, stop: Stop) -> tuple[Ints, Stop]:
        """Try other variants table by table, the busiest tables first."""
        rungs = sum(self.flat[v].bytes_K.size for v in self.first_T + picked_T)
        trials = WORK // (rungs + TABLE_WORK * picked_T.size)
        busy_T = np.maximum(self.hbm_read_V, self.host_read_V)[self.first_T]
        for _ in range(ROUNDS):
            before = stop.time_s
            for t in np.argsort(-busy_T, kind="stable").tolist():
                for variant in range(int(self.sizes_T[t])):
                    if variant == picked_T[t] or trials <= 0:
                        continue
                    trials -= 1
                    other = picked_T.copy()
                    other[t] = variant
                    tried = self.judge(other)
                    if tried.time_s < stop.time_s:
                        picked_T, stop = other, tried
            if stop.time_s >= before or trials <= 0:
                break
        return picked_T, self.judge(picked_T, exact=True)

    def decision(self, picked_T: Ints, stop: Stop) -> Decision:
        """Split what all held-out bags read by table."""
        chosen = [self.flat[v] for v in self.first_T + picked_T]
        before = sum(float(v.bytes_K[v.worth_K > stop.worth].sum()) for v in chosen)
        last = sum(float(v.bytes_K[v.worth_K == stop.worth].sum()) for v in chosen)
        fixed = sum(v.hbm_bytes for v in chosen)
        part = (stop.hbm_bytes - fixed - before) / last if last else 0.0
        hbm, host, slow, counted = [], [], 0.0, 0.0
        for v in chosen:
            reads_K = v.rung_read_GK.sum(axis=0)
            share_K = (v.worth_K > stop.worth) + part * (v.worth_K == stop.worth)
            moved = float((reads_K * share_K).sum())
            slow += float((v.counted_K * (1 - share_K)).sum())
            counted += float(v.counted_K.sum())
            hbm.append(float(v.hbm_read_G.sum()) + moved)
            host.append(float(v.host_read_G.sum() + reads_K.sum()) - moved)
        return Decision(
            picked_T,
            int(stop.hbm_bytes + 1e-6),
            slow / counted if counted else 0.0,
            stop.time_s,
            np.array(hbm),
            np.array(host),
        )
