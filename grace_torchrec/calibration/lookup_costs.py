"""Costs of lookups: stock rows and rewritten bags, timed on one core of this machine.

Flow: tables of three sizes -> nanoseconds an id, stock and ours -> *LookupCosts* of the model that plans
price lookups with (``plans/cpu_lookup_cost.py``).  Three tables give five numbers: one that a near cache
holds, and two far beyond it, of narrow and of wide rows.  Narrow rows are also read by our lookup, with sums
that save a known share of the reads: what is left beside the rows is rewriting.
Derived, as the model is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grace_kernels.cpu import FeatureRows, TableRows, look_up_features
from grace_kernels.packed_codes import pack_codes
from grace_kernels.reference import RAISE
from grace_sharding.lookup_costs import LookupCosts
from grace_torchrec.calibration.grouped_bags import ROWS_A_CLUSTER, SIZE, GroupedBags, grouped_bags
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.cpu_lookup_cost import (
    CACHED_BYTES,
    CACHED_ITEMS,
    NEAR_BYTES,
    doublings,
    row_ns,
)
from grace_torchrec.sums.clusters import ClusterCode, num_sums
from grace_torchrec.timing import Samples, interleave

NARROW, WIDE = 64, 256  # columns of float32
NEAR_ROWS = NEAR_BYTES // 2 // (4 * NARROW)  # with their sums a near cache holds them
POOLING, BATCH, SAVED = 60, 512, 0.4
READ_BYTES = 1 << 29  # rows read before a batch comes back: beyond most caches
MOST_BATCHES, ROUNDS = 64, 25
Look = Callable[[Tensor, Tensor], Tensor]  # ids and offsets of a batch -> pooled rows
LEAST_BYTE_NS = 1e-4  # what a difference of two noisy times is taken for at least


@dataclass(frozen=True)
class Timed:
    """What was timed.

    Attributes:
        costs: The model's costs of this machine.
        ns_per_id: Medians: ``near`` and ``far`` (256-byte rows), ``wide`` (1,024-byte rows), all of
            ``F.embedding_bag``; ``near_ours`` and ``far_ours``, our lookup of the same bags.
        unsteady: Those whose rounds differ so much that the machine was busy.
    """

    costs: LookupCosts
    ns_per_id: dict[str, float]
    unsteady: tuple[str, ...]


@torch.no_grad()
def measure_lookups(table_bytes: int) -> Timed:
    """Time lookups on one core, as torch lays tensors out in this process.

    Args:
        table_bytes: Bytes of the far tables; a table has 4,096 rows at least.

    Raises:
        GraceError: a lookup of ours differs from stock: nothing is timed.
    """
    far_rows, wide_rows = (max(NEAR_ROWS, table_bytes // (4 * dim)) for dim in (NARROW, WIDE))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        entrants = {
            **_entrants("near", NEAR_ROWS, NARROW),
            **_entrants("far", far_rows, NARROW),
            **_entrants("wide", wide_rows, WIDE, ours=False),
        }
        times = interleave({name: one.run for name, one in entrants.items()}, ROUNDS)
    finally:
        torch.set_num_threads(threads)
    samples = {
        name: Samples(sample.values_R * 1e9 / entrants[name].num_ids)
        for name, sample in times.items()
    }
    ns = {name: sample.median for name, sample in samples.items()}
    return Timed(
        costs_of(ns, far_rows),
        ns,
        tuple(f"lookup_{name}" for name, sample in samples.items() if sample.is_unsteady),
    )


def costs_of(ns_per_id: dict[str, float], far_rows: int) -> LookupCosts:
    """Return the costs with which the model gives these times.

    Args:
        ns_per_id: As in :class:`Timed`.
        far_rows: Rows of the far table of narrow rows.
    """
    narrow_bytes, wide_bytes = 4 * NARROW, 4 * WIDE
    far_byte = (ns_per_id["wide"] - ns_per_id["far"]) / (wide_bytes - narrow_bytes)
    far_byte = max(far_byte, LEAST_BYTE_NS)
    beyond = doublings(far_rows * narrow_bytes, CACHED_BYTES)
    walk = max(0.0, ns_per_id["far"] - narrow_bytes * far_byte)
    rows_only = LookupCosts(  # what rewriting costs follows from it
        near_byte_ns=max(ns_per_id["near"] / narrow_bytes, LEAST_BYTE_NS),
        far_byte_ns=far_byte,
        doubling_ns=walk / beyond if beyond else 0.0,
        rewrite_ns=1.0,
        codes_ns=0.0,
    )
    near, far = (
        ns_per_id[name] - (1 - SAVED) * row_ns(narrow_bytes, _footprint(rows), rows_only)
        for name, rows in (("near_ours", NEAR_ROWS), ("far_ours", far_rows))
    )
    rewrite, more = max(near, LEAST_BYTE_NS), doublings(far_rows, CACHED_ITEMS)
    codes = max(0.0, far - rewrite) / more if more else 0.0
    return replace(rows_only, rewrite_ns=rewrite, codes_ns=codes)


def _footprint(num_rows: int) -> int:
    """Return the bytes of a narrow table and of the sums of its clusters."""
    return (num_rows + num_rows // ROWS_A_CLUSTER * num_sums(SIZE)) * 4 * NARROW


@dataclass(frozen=True)
class _Entrant:
    """What takes turns: a lookup of all batches."""

    run: Callable[[], object]
    num_ids: int


def _entrants(name: str, num_rows: int, dim: int, ours: bool = True) -> dict[str, _Entrant]:
    """Return the stock lookup under a name and, if wanted, ours of the same bags."""
    batches = READ_BYTES // (BATCH * POOLING * 4 * dim)
    bags = grouped_bags(num_rows, POOLING, BATCH, SAVED, min(max(batches, 4), MOST_BATCHES))
    rows = torch.ones(num_rows, dim)  # sums of ones are exact in every order
    looks: dict[str, Look] = {name: lambda ids, offsets: _stock(ids, offsets, rows)}
    if ours:
        looks[f"{name}_ours"] = _ours(bags, rows)
    answers = [look(*bags.batches[0]) for look in looks.values()]
    if not all(torch.equal(answers[0], answer) for answer in answers):
        raise GraceError("calibrate: our lookup differs from the stock one; nothing was timed")

    def all_batches(look: Look) -> Callable[[], object]:
        """Return the lookup of all batches in turn."""
        return lambda: [look(*batch) for batch in bags.batches]

    num_ids = len(bags.batches) * BATCH * POOLING
    return {key: _Entrant(all_batches(look), num_ids) for key, look in looks.items()}


def _stock(ids: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
    """Look up without sums."""
    return F.embedding_bag(ids, rows, offsets, mode="sum", include_last_offset=True)


def _ours(bags: GroupedBags, rows: Tensor) -> Look:
    """Return our lookup of raw ids, with all sums in host memory."""
    sums = bags.sums
    items, ends = (
        torch.from_numpy(np.asarray(x, np.int64)) for x in (sums.set_items_S, sums.set_indptr_R1)
    )
    stored = _stock(items, ends, rows).numpy()
    assert isinstance(sums.code, ClusterCode)
    none = np.zeros(0, np.int32)
    table = TableRows(rows.numpy(), stored[:0], stored, pack_codes(sums.code.item_code_N), none, 0)
    features = FeatureRows([table], [0], [False])

    def look(ids: Tensor, offsets: Tensor) -> Tensor:
        out = torch.empty(offsets.numel() - 1, table.dim)
        look_up_features(
            features, ids.numpy(), offsets.numpy(), None, out.shape[0], out.numpy(),
            policy=RAISE, num_threads=1,
        )  # fmt: skip
        return out

    return look
