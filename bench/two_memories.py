"""Two memories counted in rows: what an entrant reads from each, on test bags it never saw.

Flow: entrants of one or more tables + capacity + beta -> joint choice on validation bags, refit on
train bags -> *rows in HBM* -> reads of the test bags, in all and by batch.  The placer is the one
of ``grace.plan`` (outlooks, rungs, joint choice), so that entrants differ in what they store only.
Shapes: N items, R sums, B test bags, P rows read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from bench.stored import Stored
from grace_sharding.joint import decide
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.outlook import Outlook
from grace_sharding.variants import GROUPS, Rungs, Variant, climb
from grace_torchrec.plans.ordering import worth_together
from grace_torchrec.traces.split import Split

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BATCH = 512
PLENTY = 1 << 60


@dataclass(frozen=True, eq=False)
class Held:
    """What a method stores after one fit.

    Attributes:
        stored: The sums.
        units: int64 ``[N + R]``, the unit of every row: rows of a unit share a memory; None: each
            row is a unit.
    """

    stored: Stored
    units: Ints | None = None


@dataclass(frozen=True, eq=False)
class Entrant:
    """One method with its parameters, for one table.

    Attributes:
        label: For people.
        held: Fitted on the fit bags.
        refit: Fits the same on all train bags.
    """

    label: str
    held: Held
    refit: Callable[[], Held]


@dataclass(frozen=True, eq=False)
class Served:
    """The test bags of one table as an entrant reads them.

    Attributes:
        label: What was picked.
        rows_in_hbm: Rows of any kind that it keeps in HBM.
        offsets_B1: Bags in CSR form.
        is_hbm_P: Whether each row that is read is in HBM.
    """

    label: str
    rows_in_hbm: int
    offsets_B1: Ints
    is_hbm_P: npt.NDArray[np.bool_]

    def by_batch(self) -> Ints:
        """Reads from HBM and from host memory of each batch, int64 ``[2, batches]``."""
        hbm_B = np.diff(np.concatenate([[0], np.cumsum(self.is_hbm_P)])[self.offsets_B1])
        all_B = np.diff(self.offsets_B1)
        starts = np.arange(0, max(all_B.size, 1), BATCH)
        return np.stack(
            [np.add.reduceat(reads, starts) for reads in (hbm_B, all_B - hbm_B)]
        ).astype(np.int64)


@dataclass(frozen=True)
class Figures:
    """What an entrant reaches on the test bags of all tables together.

    Attributes:
        throughput: Ids over the time, where all rows in HBM without sums are 1.
        slow_share: Share of the rows that are read from host memory.
        imbalance: How much less one memory is busy than the other, 0..1.
        p95_batch: 95th percentile of the batch times, all rows in HBM over this entrant.
        hbm_rows: Rows of any kind in HBM.
        picked: What was picked for each table.
    """

    throughput: float
    slow_share: float
    imbalance: float
    p95_batch: float
    hbm_rows: int
    picked: tuple[str, ...]


def memory_of(capacity_rows: int, beta: float) -> MemoryModel:
    """The machine whose rows are one byte."""
    return MemoryModel(
        "two memories",
        (Tier("hbm", capacity_rows, 1.0), Tier("host", PLENTY, beta)),
        sector_bytes=1,
    )


def serve(
    splits: Sequence[Split], entrants: Sequence[Sequence[Entrant]], capacity: int, beta: float
) -> list[Served]:
    """Choose an entrant for each table, all tables together, and serve the test bags.

    Args:
        splits: Train, fit, validation and test bags of each table.
        entrants: What may be chosen for each table.
        capacity: Rows of any kind that fit in HBM.
        beta: Rate of host memory over that of HBM.
    """
    judged = [
        [_judged(split, one.held) for one in own]
        for split, own in zip(splits, entrants, strict=True)
    ]
    variants = [[_variant(rungs) for rungs, *_ in own] for own in judged]
    best = decide(variants, memory_of(capacity, beta))
    picked = best.picked_T.tolist()
    wanted = sum(float(own[v].bytes_K.sum()) for own, v in zip(variants, picked, strict=True))
    filled = capacity if best.hbm_bytes >= int(wanted) else best.hbm_bytes
    refits = [own[v].refit() for own, v in zip(entrants, picked, strict=True)]
    expected = [
        _worth(split, refit, *judged[t][v][1:])
        for t, (split, refit, v) in enumerate(zip(splits, refits, picked, strict=True))
    ]
    worth, counted = (np.concatenate(part) for part in zip(*expected, strict=True))
    order = np.argsort(-worth, kind="stable")
    left = counted.sum() - np.concatenate([[0], np.cumsum(counted[order])])
    enough = int(np.argmax(left <= best.slow_share * counted.sum() * (1 + 1e-9)))
    in_hbm = np.zeros(worth.size, bool)
    in_hbm[order[: min(capacity, max(filled, enough))]] = True
    masks = np.split(in_hbm, np.cumsum([one.size for one, _ in expected])[:-1])
    return [
        served(own[v].label, split, refit.stored, mask)
        for own, v, split, refit, mask in zip(entrants, picked, splits, refits, masks, strict=True)
    ]


def served(label: str, split: Split, stored: Stored, in_hbm: npt.NDArray[np.bool_]) -> Served:
    """Serve the test bags of one table with given rows in HBM."""
    bags = stored.rewrite(split.test)
    return Served(label, int(in_hbm.sum()), bags.offsets_B1, in_hbm[bags.rows])


def figures(tables: Sequence[Served], splits: Sequence[Split], beta: float) -> Figures:
    """Add the tables up, then take the slower memory."""
    hbm, host = (int(sum(part.by_batch()[m].sum() for part in tables)) for m in (0, 1))
    ids = sum(split.test.num_ids for split in splits)
    plain = [_batch_ids(split.test.offsets_B1) for split in splits]
    batches = min(one.size for one in plain)
    by_batch = np.sum([part.by_batch()[:, :batches] for part in tables], axis=0)
    times = np.maximum(by_batch[0], by_batch[1] / beta)
    all_in_hbm = np.sum([one[:batches] for one in plain], axis=0)
    slow_s, slower = host / beta, max(hbm, host / beta)
    return Figures(
        throughput=ids / slower,
        slow_share=host / (hbm + host),
        imbalance=1 - min(hbm, slow_s) / slower,
        p95_batch=float(np.quantile(all_in_hbm, 0.95) / np.quantile(times, 0.95)),
        hbm_rows=sum(part.rows_in_hbm for part in tables),
        picked=tuple(part.label for part in tables),
    )


def _batch_ids(offsets_B1: Ints) -> Ints:
    """Ids of each batch."""
    lengths_B = np.diff(offsets_B1)
    return np.add.reduceat(lengths_B, np.arange(0, max(lengths_B.size, 1), BATCH))


@cache
def _judged(split: Split, held: Held) -> tuple[Rungs, Outlook, Outlook]:
    """Learn on the fit bags and judge on the validation bags, once for all machines."""
    num_items, num_rows = split.fit.num_items, split.fit.num_items + held.stored.num_sums
    counted = np.bincount(held.stored.rewrite(split.fit).rows, minlength=num_rows)
    bags = held.stored.rewrite(split.validation)
    held_out = np.bincount(bags.rows, minlength=num_rows)
    plain = Outlook.fit(counted[:num_items], held_out[:num_items])
    stored = Outlook.fit(counted[num_items:], held_out[num_items:])
    worth = _together(counted, num_items, held.units, plain, stored, 1.0)
    group_P = np.repeat(np.arange(bags.offsets_B1.size - 1) % GROUPS, np.diff(bags.offsets_B1))
    return Rungs.of(worth, counted, bags.rows, group_P), plain, stored


def _worth(split: Split, held: Held, plain: Outlook, stored: Outlook) -> tuple[Floats, Ints]:
    """What every row is worth by the reads of all train bags, and these reads."""
    num_items = split.fit.num_items
    rows = held.stored.rewrite(split.train).rows
    counted = np.bincount(rows, minlength=num_items + held.stored.num_sums)
    scale = split.fit.num_ids / split.train.num_ids
    return _together(counted, num_items, held.units, plain, stored, scale), counted


def _together(
    counted: Ints,
    num_items: int,
    units: Ints | None,
    plain: Outlook,
    stored: Outlook,
    scale: float,
) -> Floats:
    """Expected reads of every row, the mean of its unit."""
    worth = np.concatenate(
        [plain.expected(counted[:num_items], scale), stored.expected(counted[num_items:], scale)]
    )
    return worth if units is None else worth_together(worth, units)


def _variant(rungs: Rungs) -> Variant:
    """A table whose rows may all be in either memory."""
    none_G = np.zeros(GROUPS)
    return Variant("host", True, 0, 0, none_G, none_G, *climb((rungs,), 1, 1))
