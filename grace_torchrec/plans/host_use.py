"""Host use: whether rows go to host memory though HBM has room for them.

Flow: variants of every table + memory -> *decide_within* -> sharing.  Both memories are read at the
same time, so a little of the load in host memory makes HBM done earlier (GRACE, ASPLOS'23).
Derived: where all fits into HBM, that is done only as far as a gain can be claimed of it
(:mod:`grace_torchrec.plans.claims`).  A table that the last cache holds whole stays in HBM, since
the model does not know what its reads take there; and all tables stay unless host memory gains a
kernel launch on the held-out bags, for a second memory is a second table batch.  Where caches and
launches are not known, bandwidths decide alone.
Shapes: T tables.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from grace_sharding.joint import Decision, decide
from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.variants import Variant
from grace_torchrec.plans.claims import cache_holds
from grace_torchrec.plans.pricing import Way
from grace_torchrec.plans.table_spec import TableSpec

Ints = npt.NDArray[np.int64]
Numbers = list[list[int]]  # of variants, by table


def with_whole(variants: Sequence[Variant], ways: Sequence[Way]) -> tuple[list[Variant], list[Way]]:
    """Return the variants and, behind them, those in HBM again with all their sums in HBM.

    Args:
        variants: The ways to serve one table.
        ways: What each means.
    """
    split = [v for v, one in enumerate(variants) if one.originals == "hbm" and one.bytes_K.size]
    return (
        [*variants, *(variants[v].all_in_hbm() for v in split)],
        [*ways, *(ways[v] for v in split)],
    )


def decide_within(
    tables: Sequence[Sequence[Variant]],
    specs: Sequence[TableSpec],
    memory: MemoryModel,
    starts: Sequence[Ints] = (),
) -> Decision:
    """Pick a variant for each table; host memory is used where it must be, or where that pays.

    Args:
        tables: Variants of each table, those of :func:`with_whole`.
        specs: The tables.
        memory: The machine.
        starts: Choices to begin with.
    """
    whole = [[v for v, one in enumerate(own) if one.is_whole] for own in tables]
    open_, room = _open(tables, memory), _room_for_all(tables, whole, memory)
    if room:
        held = [cache_holds(spec, memory) for spec in specs]
        open_ = [few if here else own for few, own, here in zip(whole, open_, held, strict=True)]
    best = _among(open_, tables, memory, starts)
    if memory.launch_s is None or not room:
        return best
    alone = _among(whole, tables, memory)
    return alone if alone.time_s - best.time_s < memory.launch_s else best


def _open(tables: Sequence[Sequence[Variant]], memory: MemoryModel) -> Numbers:
    """Variants to choose from: those with all sums in HBM only where host memory may lack room.

    Elsewhere their like, of which sums may be in either memory, is never worse.
    """
    most = sum(max(one.host_bytes for one in own) for own in tables)
    tight = most > memory.host.num_bytes
    return [[v for v, one in enumerate(own) if tight or not one.moved] for own in tables]


def _room_for_all(tables: Sequence[Sequence[Variant]], whole: Numbers, memory: MemoryModel) -> bool:
    """Tell whether HBM holds every table with the most that it could store."""
    if memory.hbm is None or not all(whole):
        return False
    most = sum(max(own[v].hbm_bytes for v in few) for own, few in zip(tables, whole, strict=True))
    return most <= memory.hbm.num_bytes


def _among(
    numbers: Numbers,
    tables: Sequence[Sequence[Variant]],
    memory: MemoryModel,
    starts: Sequence[Ints] = (),
) -> Decision:
    """Decide among some variants of each table; what is picked is numbered among all of them."""
    few = [[own[v] for v in kept] for own, kept in zip(tables, numbers, strict=True)]
    begin = [
        np.array(
            [kept.index(v) if v in kept else 0 for v, kept in zip(start, numbers, strict=True)]
        )
        for start in starts
    ]
    found = decide(few, memory, begin)
    picked = [kept[v] for v, kept in zip(found.picked_T.tolist(), numbers, strict=True)]
    return replace(found, picked_T=np.array(picked, np.int64))
