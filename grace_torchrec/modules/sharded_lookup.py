"""Sharded lookup: what a swapped module does once its collections are sharded.

Flow: features -> ShardedRewriter -> both sharded collections -> *ShardedLookup* -> KeyedTensor.
Both collections are asked before one is waited for, and the result is awaited when it is used, so
that the ranks' exchange runs beside the dense part as in a stock model.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import KeyedTensor

from grace_torchrec.errors import StaleSums
from grace_torchrec.modules import _torchrec, sharded_rows
from grace_torchrec.modules.lookup import StockLookup

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection


class AllFeatures(StockLookup):
    """Every feature, however its table was planned: sharded rows are read by sharded lookups."""

    ways = ("fused", "ahead", "stock")


@dataclass(frozen=True, eq=False)
class _Built:
    """What the tables of one collection were when its sums were built.

    Attributes:
        bags: The module that holds the shards of every table; resharding makes a new one.
        shards: (original table, rows or stored rows of it here, version, address).
    """

    bags: Any
    shards: list[tuple[str, Tensor, int, int]]


class ShardedLookup(nn.Module):
    """The sharded life of one swapped module: adding up, freshness, rebuilding.

    A module of its own without parameters: pipelines and tracers do not look inside.

    Freshness is that of this rank: who holds a changed shard refuses, and the others, which wait
    for it, get no answer.  Loads through the module are seen by every rank.

    Args:
        owner: The module.
    """

    def __init__(self, owner: "GraceEmbeddingBagCollection") -> None:
        super().__init__()
        self._owners = [owner]  # a list: the owner is no child
        self._all = AllFeatures(owner.table_plans, owner.output_names)
        self._built: list[_Built] | None = None

    @property
    def _owner(self) -> "GraceEmbeddingBagCollection":
        """The module."""
        return self._owners[0]

    def forward(self, asked: dict[str, Any], lengths: Tensor, reads: Tensor) -> "TiersAwaitable":
        """Return what both collections were asked for as one KeyedTensor, awaited when used.

        A pipeline rewrites a batch before the one in front of it is looked up: what was loaded
        in between is noticed here.

        Args:
            asked: Tier -> what its collection returned.
            lengths: Lengths of the original bags ``[F, B]``.
            reads: int64 ``[F, 2]``.

        Raises:
            StaleSums: the sums were not built since the last load.
        """
        self.require_fresh()
        return TiersAwaitable(asked, lengths, reads, self)

    def rebuild(self, progress: Callable[[str], None] | None = None) -> int:
        """Build every stored row anew, all ranks together; return how many all ranks hold."""
        sharded_rows.rebuild(self._owner, progress)
        self._built = [self._state(inner) for inner in self._owner.inner_collections().values()]
        return sum(self._owner.sets_of(name)[0].numel() - 1 for name in self._owner.stored_tables)

    def stale_tables(self) -> dict[str, str]:
        """Compare the stored rows of this rank with their sums, all ranks together.

        Returns:
            Original table -> reason.
        """
        owner = self._owner
        names = [config.name for config in owner.embedding_bag_configs()]
        found = {
            names[owner.stored_tables[stored][1]]: reason
            for stored, reason in sharded_rows.differing_tables(owner).items()
        }
        why = self._why_stale()
        if why is not None and why[0] is not None:
            found.setdefault(why[0], why[1])
        elif why is not None:
            found |= {names[t]: why[1] for _, t in owner.stored_tables.values()}
        return found

    def forget(self) -> None:
        """Take all sums for stale: the tables were loaded, moved or sharded."""
        self._built = None

    def require_fresh(self) -> None:
        """Raise unless the sums of this rank were built from its tables as they are.

        Raises:
            StaleSums: names the table, the reason and what to do.
        """
        why = self._why_stale()
        if why is not None:
            raise StaleSums(
                f"{'tables' if why[0] is None else 'table'} "
                f"{self._owner.path if why[0] is None else repr(why[0])}: {why[1]}; call "
                "grace_torchrec.rebuild_sums_(model) on every rank"
            )

    def pooled(self, asked: dict[str, Any], lengths: Tensor, reads: Tensor) -> KeyedTensor:
        """Wait for both collections and add up what they return."""
        looked_up = {tier: answer.to_dict() for tier, answer in asked.items()}
        columns = self._all.columns(looked_up, lengths, lengths.shape[1])
        self._owner.count_reads(self._all.chosen, reads)
        pooled = torch.ops.grace.join_columns(columns)
        return KeyedTensor(
            keys=self._owner.output_names, length_per_key=self._owner.dims, values=pooled
        )

    def _state(self, inner: nn.Module) -> _Built:
        """Return what the tables of a sharded collection are now, originals first."""
        owner = self._owner
        names = [config.name for config in owner.embedding_bag_configs()]
        table_of = {names[t]: names[t] for _, t in owner.stored_tables.values()}
        table_of |= {stored: names[t] for stored, (_, t) in owner.stored_tables.items()}
        held = _torchrec.local_shards(inner)
        shards = [
            (table_of[name], shard.rows, shard.rows._version, shard.rows.data_ptr())
            for name in table_of
            for shard in held.get(name, [])
        ]
        return _Built(inner.embedding_bags, shards)

    def _why_stale(self) -> tuple[str | None, str] | None:
        """Return (table, or None for all, reason) where something speaks against the sums."""
        owner = self._owner
        if not owner.stored_tables:
            return None
        if self._built is None:
            return None, "its sums were not built since they were sharded or loaded"
        for built, inner in zip(self._built, owner.inner_collections().values(), strict=True):
            if built.bags is not inner.embedding_bags:
                return None, "its tables were sharded anew"
            for name, rows, version, address in built.shards:
                if rows._version != version or rows.data_ptr() != address:
                    # Tables of one kernel share a counter: which of them it was cannot be told.
                    return name, "it, or a table beside it in one kernel, was written to"
        return None


class TiersAwaitable(LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """The pooled embeddings of a batch; both collections work on it until it is used."""

    def __init__(
        self, asked: dict[str, Any], lengths: Tensor, reads: Tensor, lookup: ShardedLookup
    ) -> None:
        super().__init__()
        self._parts = asked, lengths, reads, lookup

    def _wait_impl(self) -> KeyedTensor:
        """Wait for both."""
        asked, lengths, reads, lookup = self._parts
        return lookup.pooled(asked, lengths, reads)
