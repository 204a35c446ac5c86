"""Stored tables: original tables and the rows stored beside them, in one collection a memory.

Flow: stock EmbeddingBagCollection + TablePlans -> *StoredTables* -> lookups read them.  Each tier,
``host`` and ``hbm``, is a stock collection, for TorchRec's sharders, planner and quantiser match
exact types: its Parameters are the original ones, adopted, beside tables of stored rows, which are
derived state.
Shapes: T tables, N items, R stored rows, D dimension.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
)

from grace_kernels.op_inputs import packed_codes
from grace_torchrec.arguments import expect
from grace_torchrec.errors import GraceError
from grace_torchrec.modules import _torchrec, freshness
from grace_torchrec.modules.fitting import plan_of_each
from grace_torchrec.modules.lookup import refuse_unreadable
from grace_torchrec.modules.rewriter import PART_SUFFIX, Rewriter
from grace_torchrec.modules.sharded_lookup import ShardedLookup
from grace_torchrec.plans.held import stored_sets
from grace_torchrec.plans.inner_tables import TIERS, stored_name
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.sums.build_rows import build_rows

RESTORE_FIRST = (
    "its rows stay as they are: call restore_ before you move or convert the model (rows in fewer "
    "bits: convert(model, plan, row_dtype=...))"
)


class StoredTables(EmbeddingBagCollectionInterface):
    """The tables of a swapped collection; who looks them up is a subclass.

    Args:
        collection: The stock collection; its Parameters are adopted, not copied.
        plans: Plan of each of its tables, by table name.
        bad_ids: What an id outside its table does.

    Attributes:
        rewriter: Codes and hot rows of every table.
        sharded: What it does once DistributedModelParallel sharded its collections.

    Raises:
        NotSupported: a device or type this version has no kernels for.
        PlanMismatch: a table has no plan, or one that was made for another table.
        GraceError: ``bad_ids`` is unknown.
    """

    sharded: ShardedLookup

    def __init__(
        self, collection: EmbeddingBagCollection, plans: Mapping[str, TablePlan], bad_ids: str
    ) -> None:
        super().__init__()
        expect(type(self).__name__, "collection", collection, EmbeddingBagCollection)
        self._configs = list(collection.embedding_bag_configs())
        self._plans = plan_of_each(collection, plans)
        self._homes = [(plan.spec.name, plan.placement.originals) for plan in self._plans]
        self._is_weighted = bool(collection.is_weighted())
        self.training = collection.training
        weights = {c.name: collection.embedding_bags[c.name].weight for c in self._configs}
        for config in self._configs:
            refuse_unreadable(repr(config.name), weights[config.name])
        self._input_names = [f for config in self._configs for f in config.feature_names]
        self._output_names = _torchrec.output_names(self._configs)
        self._dims = [c.embedding_dim for c in self._configs for _ in c.feature_names]
        self.rewriter = Rewriter(self._plans, self._output_names, bad_ids)
        self._sets: dict[str, tuple[str, int]] = {}  # stored table -> (tier, table index)
        for tier in TIERS:
            inner = self._inner_collection(tier, weights)
            if inner is not None:
                setattr(self, tier, inner)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the configs of the original tables."""
        return self._configs

    def is_weighted(self) -> bool:
        """Return whether bags carry weights."""
        return self._is_weighted

    @property
    def device(self) -> torch.device:
        """Device of the original tables."""
        return self.weight(0).device

    @property
    def embedding_bags(self) -> nn.ModuleDict:
        """The original tables by name, as in the stock collection."""
        return nn.ModuleDict(
            {c.name: self._home(t).embedding_bags[c.name] for t, c in enumerate(self._configs)}
        )

    @property
    def is_sharded(self) -> bool:
        """Whether DistributedModelParallel sharded its collections."""
        modules: Any = self._modules
        return any(_torchrec.is_sharded(modules[tier]) for tier in TIERS if tier in modules)

    @property
    def stored_tables(self) -> dict[str, tuple[str, int]]:
        """Table of stored rows -> its tier, and the number of its original table."""
        return self._sets

    @property
    def table_plans(self) -> list[TablePlan]:
        """The plans of the tables, in order."""
        return list(self._plans)

    def inner_collections(self) -> dict[str, EmbeddingBagCollection]:
        """Return the stock collections of the tiers in use, by tier."""
        return {tier: getattr(self, tier) for tier in TIERS if hasattr(self, tier)}

    def homes(self) -> list[tuple[str, str]]:
        """Return (table name, tier of its original rows) in order."""
        return list(self._homes)

    def weight(self, table: int) -> nn.Parameter:
        """Return the original rows of table number ``table``."""
        return self._rows_of(self._plans[table].placement.originals, self._configs[table].name)

    def stored(self, table: int, tier: str) -> Tensor:
        """Return the stored rows of a table in a tier (``[0, D]`` where there are none)."""
        name = stored_name(self._configs[table].name, tier)
        if name in self._sets:
            return self._rows_of(tier, name)
        return self.weight(table).detach()[:0]

    @torch.no_grad()
    def rebuild_sums(self, progress: Callable[[str], None] | None = None) -> int:
        """Build every stored row anew from the original rows; return how many there are.

        Tables on the meta device are left alone: a load builds them.

        Args:
            progress: Called with a line of text as the work on sharded tables goes on.

        Raises:
            NotSupported: a table now has a type, shape or layout that no kernel reads.
        """
        if self.is_sharded:
            return self.sharded.rebuild(progress)
        for table, config in enumerate(self._configs):
            shape = (config.num_embeddings, config.embedding_dim)
            refuse_unreadable(repr(config.name), self.weight(table), shape)
        total = 0
        for name, (tier, table) in self._sets.items():
            weight, stored = self.weight(table), self.stored(table, tier)
            if weight.is_meta:
                continue
            if (stored.dtype, stored.device) != (weight.dtype, weight.device):  # load with assign
                stored = nn.Parameter(weight.new_empty(stored.shape), requires_grad=False)
                getattr(self, tier).embedding_bags[name].weight = stored
            build_rows(weight.detach(), *self.sets_of(name), stored.data)
            freshness.record_built(weight, stored)
            total += stored.shape[0]
        return total

    def stale_tables(self) -> dict[str, str]:
        """Compare every stored row with its sum; return table name -> reason where one differs."""
        if self.is_sharded:
            return self.sharded.stale_tables()
        found: dict[str, str] = {}
        for name, (tier, table) in self._sets.items():
            weight, stored = self.weight(table), self.stored(table, tier)
            reason = freshness.why_stale(weight, stored)
            if reason is None:
                indptr, items = self.sets_of(name)
                row = freshness.differing_row(weight, stored, indptr, items, 0, stored.shape[0])
                reason = f"stored row {row} is not the sum of its rows" if row >= 0 else None
            if reason is not None:
                found[self._configs[table].name] = reason
        return found

    @property
    def calls_to_check_all(self) -> int:
        """After so many forwards the rotating sample has compared every stored row once."""
        rows = [self.stored(t, tier).shape[0] for tier, t in self._sets.values()]
        return freshness.calls_to_check_all(rows)

    def extra_bytes_of(self, table: str) -> int:
        """Every byte held beside an original table, as its plan predicts: rows, sets and codes.

        Raises:
            GraceError: there is no table of this name.
        """
        names = [config.name for config in self._configs]
        if table not in names:
            raise GraceError(f"collection has no table {table!r}; it has {names}")
        number = names.index(table)
        held: list[Tensor] = []
        for name, (tier, t) in self._sets.items():
            if t == number:
                held += [self.stored(t, tier), *self.sets_of(name)]
        arrays = self.rewriter.arrays_of(number)
        code = self.rewriter.item_codes()[number]
        packed_bytes = packed_codes(code).num_bytes if code.is_cpu else 0
        return sum(tensor.nbytes for tensor in (*held, *arrays)) + packed_bytes

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        """Move or convert the tables as any module does, then rebuild what was derived.

        Raises:
            NotSupported: no kernel reads the new type or device; no table is changed then.
        """
        if self.is_sharded:
            self.sharded.forget()
            return super()._apply(fn, recurse)
        for table, config in enumerate(self._configs):
            weight = self.weight(table)
            refuse_unreadable(repr(config.name), fn(weight.new_empty(0)), todo=RESTORE_FIRST)

        def keeping_codes(tensor: Tensor) -> Tensor:
            """Apply ``fn``; codes and sets come from the plan, so they keep what they hold."""
            changed: Tensor = fn(tensor)
            if tensor.is_floating_point():
                return changed
            return tensor if changed.is_meta else changed.copy_(tensor)

        before = [w.data_ptr() for w in map(self.weight, range(len(self._configs)))]
        result = super()._apply(keeping_codes, recurse)
        if before != [w.data_ptr() for w in map(self.weight, range(len(self._configs)))]:
            self.rebuild_sums()
        return result

    def _inner_collection(
        self, tier: str, weights: Mapping[str, nn.Parameter]
    ) -> EmbeddingBagCollection | None:
        """Adopt the tables of one tier and make its tables of stored rows."""
        configs: list[EmbeddingBagConfig] = []
        held: dict[str, nn.Parameter] = {}
        names = iter(self._output_names)
        for t, (config, plan) in enumerate(zip(self._configs, self._plans, strict=True)):
            weight = weights[config.name]
            features = [next(names) for _ in config.feature_names]
            if plan.placement.originals == tier:
                configs.append(_torchrec.table_config(config, config.name, weight, features))
                held[config.name] = weight
            sets = stored_sets(plan).get(tier)
            if sets is not None:
                name = stored_name(config.name, tier)
                rows = weight.detach().new_empty(sets[0].size - 1, weight.shape[1])
                stored_features = [feature + PART_SUFFIX[tier] for feature in features]
                configs.append(_torchrec.table_config(config, name, rows, stored_features))
                held[name] = nn.Parameter(rows, requires_grad=False)
                self._sets[name] = (tier, t)
                for part, array in zip(("indptr", "items"), sets, strict=True):
                    self.register_buffer(
                        f"{name}_{part}", torch.from_numpy(array), persistent=False
                    )
        return _torchrec.adopt(configs, held, self._is_weighted) if configs else None

    def _home(self, table: int) -> EmbeddingBagCollection:
        """Return the inner collection that holds an original table."""
        return getattr(self, self._plans[table].placement.originals)

    def weights(self) -> list[Tensor]:
        """Return the original rows of every table; each forward asks, so by plain dictionaries.

        Nothing on the way is remembered: a Parameter, a table or a whole tier may be replaced.
        """
        modules: Any = self._modules
        bags = {t: modules[t]._modules["embedding_bags"]._modules for t in TIERS if t in modules}
        return [bags[tier][name]._parameters["weight"] for name, tier in self._homes]

    def arrays(self) -> list[Tensor]:
        """Return codes and hot rows of every table, by plain dictionaries too."""
        rewriter: Any = self._modules["rewriter"]
        found: list[Tensor] = rewriter.arrays()
        return found

    def _rows_of(self, tier: str, name: str) -> nn.Parameter:
        """Return the rows of an inner table; plain dictionaries, for this runs in every forward."""
        tables: Any = self._modules[tier]._modules["embedding_bags"]._modules
        rows: nn.Parameter = tables[name]._parameters["weight"]
        return rows

    def sets_of(self, name: str) -> tuple[Tensor, Tensor]:
        """Return indptr and items of the sets behind a stored table."""
        buffers: Any = self._buffers
        return buffers[f"{name}_indptr"], buffers[f"{name}_items"]

    def stored_state(
        self,
    ) -> tuple[list[Tensor], list[int], list[Tensor], list[Tensor], list[Tensor], list[str]]:
        """Return what the freshness check compares."""
        tables: list[Tensor] = [self.weight(t) for t in range(len(self._configs))]
        stored = [self.stored(t, tier) for tier, t in self._sets.values()]
        sets = [self.sets_of(name) for name in self._sets]
        table_of = [t for _, t in self._sets.values()]
        labels = [repr(config.name) for config in self._configs]
        return tables, table_of, stored, [s[0] for s in sets], [s[1] for s in sets], labels
