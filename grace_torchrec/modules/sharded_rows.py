"""Stored rows under DistributedModelParallel: built, and compared, by the sharded lookup itself.

Flow: load -> *rebuild* -> forward.  Each rank sends the sets behind the stored rows of its own
shards as bags through the sharded originals, so there is no code for any way of sharding.  All
ranks call together; a chunk is as large as its bytes allow, and the same on every rank.
Derived: the paper stores sums on one machine.
Shapes: T tables, R stored rows of this rank for one table, B bags a chunk, D dimension.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.errors import GraceError
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules._torchrec import LocalShard
from grace_torchrec.modules.rewriter import PART_SUFFIX
from grace_torchrec.modules.tier_bags import tier_keys

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

CHUNK_BYTES = 64 << 20  # what the bags of a chunk and their pooled rows take on each rank
ROUNDING = 1e-5  # of the largest value of a stored row: ranks may add in another order

Visit = Callable[[str, LocalShard, int, Tensor], None]


@dataclass(frozen=True, eq=False)
class _Wanted:
    """The stored rows of one original table that this rank holds.

    Attributes:
        feature: A feature that reads the original table.
        pieces: (stored table, shard, indptr, items): the sets of each shard, one after the other.
    """

    feature: str
    pieces: list[tuple[str, LocalShard, Tensor, Tensor]]

    @property
    def num_rows(self) -> int:
        """Rows of all pieces."""
        return sum(shard.rows.shape[0] for _, shard, _, _ in self.pieces)


def rebuild(
    owner: "GraceEmbeddingBagCollection", progress: Callable[[str], None] | None = None
) -> None:
    """Write every stored row of this rank anew; all ranks call it together.

    Args:
        owner: A swapped module whose collections are sharded.
        progress: Called with a line of text after each chunk.

    Raises:
        GraceError: a pipeline holds the module.
    """

    def write(name: str, shard: LocalShard, first: int, rows: Tensor) -> None:
        """Put pooled rows into their shard."""
        shard.rows[first : first + rows.shape[0]].copy_(rows)

    _visit_all(owner, write, progress)
    for inner in owner.inner_collections().values():
        _torchrec.forget_cached_rows(inner)


def differing_tables(owner: "GraceEmbeddingBagCollection") -> dict[str, str]:
    """Compare every stored row of this rank with its sum; all ranks call it together.

    Returns:
        Stored table -> which row differs.
    """
    found: dict[str, str] = {}

    def compare(name: str, shard: LocalShard, first: int, rows: Tensor) -> None:
        """Keep the first row that differs by more than the order of adding explains."""
        have = shard.rows[first : first + rows.shape[0]].float()
        want = rows.to(shard.rows.dtype).float()  # half rows are rounded when they are built
        step = max(ROUNDING, 2 * torch.finfo(shard.rows.dtype).eps)
        allowed = step * want.abs().amax(dim=1, keepdim=True).nan_to_num(0, 0) + 1e-6
        same = have.eq(want) | (have.isnan() & want.isnan()) | ((have - want).abs() <= allowed)
        differ = torch.nonzero(~same.all(dim=1))
        if differ.numel():
            row = shard.first_row + first + int(differ[0])
            found.setdefault(name, f"stored row {row} is not the sum of its rows")

    _visit_all(owner, compare, None)
    return found


@torch.no_grad()
def _visit_all(
    owner: "GraceEmbeddingBagCollection", visit: Visit, progress: Callable[[str], None] | None
) -> None:
    """Pool the sets of all stored rows of this rank, chunk by chunk, and show them to ``visit``."""
    sharded = owner.inner_collections()
    if any(_torchrec.is_pipelined(inner) for inner in sharded.values()):
        raise GraceError(
            f"module {owner.path!r}: a pipeline holds it; call detach() on the pipeline before "
            "its sums are built or compared"
        )
    shards = {tier: _torchrec.local_shards(inner) for tier, inner in sharded.items()}
    for tier, inner in sharded.items():
        wanted = _wanted(owner, tier, shards)
        chunk = _bags_a_chunk(owner)
        mine = max((part.num_rows for part in wanted), default=0)
        most = _torchrec.most_of_all_ranks(inner, mine)
        for first in range(0, most, chunk):
            bags = min(chunk, most - first)
            pieces = [list(_cut(part, first, first + bags)) for part in wanted]
            pooled = inner(_batch(owner, wanted, pieces, bags))
            for part, cut in zip(wanted, pieces, strict=True):
                place = 0
                for name, shard, begin, sets, _ in cut:
                    rows = pooled[part.feature][place : place + sets.numel()]
                    column = shard.first_column
                    visit(name, shard, begin, rows[:, column : column + shard.rows.shape[1]])
                    place += sets.numel()
            if progress is not None:
                told = f"{min(first + bags, most):,} of {most:,}"
                progress(f"module {owner.path}: stored rows {told} of the fullest rank ({tier})")


def _wanted(
    owner: "GraceEmbeddingBagCollection", home: str, shards: dict[str, dict[str, list[LocalShard]]]
) -> list[_Wanted]:
    """Return what this rank holds of the stored rows whose originals live in tier ``home``."""
    names = iter(owner.output_names)
    wanted = []
    for table, plan in enumerate(owner.table_plans):
        features = [next(names) for _ in plan.spec.features]
        if plan.placement.originals != home:
            continue
        pieces = [
            (name, shard, *_sets_of_shard(*owner.sets_of(name), shard))
            for name, (tier, of_table) in owner.stored_tables.items()
            if of_table == table
            for shard in shards[tier][name]
            if shard.rows.shape[0]
        ]
        wanted.append(_Wanted(features[0], pieces))
    return wanted


def _sets_of_shard(indptr: Tensor, items: Tensor, shard: LocalShard) -> tuple[Tensor, Tensor]:
    """Return indptr (from 0) and items of the sets behind the rows of a shard."""
    ends = indptr[shard.first_row : shard.first_row + shard.rows.shape[0] + 1]
    return ends - ends[0], items[int(ends[0]) : int(ends[-1])]


def _cut(
    part: _Wanted, first: int, last: int
) -> Iterator[tuple[str, LocalShard, int, Tensor, Tensor]]:
    """Yield (stored table, shard, row in it, lengths of its sets, their items) of some rows."""
    begin = 0
    for name, shard, indptr, items in part.pieces:
        rows = shard.rows.shape[0]
        low, high = max(first - begin, 0), min(last - begin, rows)
        if low < high:
            ends = indptr[low : high + 1]
            yield name, shard, low, ends.diff(), items[int(ends[0]) : int(ends[-1])]
        begin += rows


def _bags_a_chunk(owner: "GraceEmbeddingBagCollection") -> int:
    """Return how many bags a chunk has; every rank finds the same number."""
    width = len(PART_SUFFIX) * sum(owner.dims)
    longest = sum(int(owner.sets_of(name)[0].diff().max()) for name in owner.stored_tables)
    return max(1, CHUNK_BYTES // (4 * width + 8 * longest + 1))


def _batch(
    owner: "GraceEmbeddingBagCollection",
    wanted: list[_Wanted],
    pieces: list[list[tuple[str, LocalShard, int, Tensor, Tensor]]],
    bags: int,
) -> KeyedJaggedTensor:
    """Return the sets as bags, with the keys that every batch has (their order is remembered)."""
    of_feature = {part.feature: cut for part, cut in zip(wanted, pieces, strict=True)}
    keys = tier_keys(owner.output_names)
    lengths = torch.zeros(len(keys), bags, dtype=torch.int64, device=owner.device)
    values = []
    for place, key in enumerate(keys):
        begin = 0
        for _, _, _, sizes, items in of_feature.get(key, []):
            lengths[place, begin : begin + sizes.numel()] = sizes
            values.append(items.to(torch.int64))
            begin += sizes.numel()
    ids = torch.cat(values) if values else lengths.new_empty(0)
    weights = None
    if owner.is_weighted():
        weights = torch.ones(ids.numel(), dtype=owner.rewriter.weight_dtype, device=ids.device)
    return KeyedJaggedTensor(keys=keys, values=ids, lengths=lengths.flatten(), weights=weights)
