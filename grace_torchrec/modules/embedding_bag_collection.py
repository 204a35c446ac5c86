"""GraceEmbeddingBagCollection: the drop-in that reads stored sums where it can.

Flow: stock EmbeddingBagCollection + TablePlans -> *this module* -> KeyedTensor.
Source: GRACE, ASPLOS'23.  It wraps (TorchRec's sharders and quantiser match exact types) and
owns one stock collection for each memory tier, ``host`` and ``hbm``: their Parameters are the
original ones, adopted, beside tables of stored rows, which are derived state.
Shapes: F features, B bags of each, T tables, N items, R stored rows, D dimension.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_kernels.ops import packed_codes
from grace_torchrec.errors import NotSupported
from grace_torchrec.modules import _torchrec, checkpoint, freshness
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.direct import DirectLookup
from grace_torchrec.modules.fitting import plan_of_each
from grace_torchrec.modules.lookup import (
    AheadLookup,
    Bags,
    FusedLookup,
    RewrittenLookup,
    StockLookup,
    refuse_unreadable,
)
from grace_torchrec.modules.rewriter import PART_SUFFIX, Rewriter, stored_sets
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.modules.sharded_lookup import ShardedLookup
from grace_torchrec.modules.sharded_rewriter import ShardedRewriter
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.sums.build_rows import build_rows

TIERS = ("hbm", "host")

torch.fx.wrap("bags_of")  # fx looks names up in the module that calls them


class GraceEmbeddingBagCollection(EmbeddingBagCollectionInterface):
    """Same keys, order, types, shapes and state-dict keys as the collection it stands for.

    Inference only: forward raises in training mode, a backward through the output raises, and
    sums that no longer match their rows raise :class:`~grace_torchrec.errors.StaleSums`.

    Args:
        collection: The stock collection; its Parameters are adopted, not copied.
        plans: Plan of each of its tables, by table name.
        bad_ids: What an id outside its table does: ``raise`` (default), ``drop`` or ``zero_row``.
        strict: Refuse a batch whose weights would be ignored (default: warn once).
        path: Dotted path in its model: a RewrittenBatch holds the rows for it under this name.

    Attributes:
        path: As given.
        strict: As given.
        sharded: What it does once DistributedModelParallel sharded its collections.
        plain_batches: int64 ``[1]``: batches that came plain for tables planned ``ahead``.

    Raises:
        NotSupported: a device or type this version has no kernels for.
        PlanMismatch: a table has no plan, or one that was made for another table.
        GraceError: ``bad_ids`` is unknown.
    """

    _FORCE_STATE_DICT_LOAD = True  # DistributedModelParallel then loads by our hooks

    def __init__(
        self,
        collection: EmbeddingBagCollection,
        plans: Mapping[str, TablePlan],
        *,
        bad_ids: str = "raise",
        strict: bool = False,
        path: str = "",
    ) -> None:
        super().__init__()
        self.path = path
        self._configs = list(collection.embedding_bag_configs())
        self._plans = plan_of_each(collection, plans)
        self._homes = [(plan.spec.name, plan.placement.originals) for plan in self._plans]
        self._is_weighted = bool(collection.is_weighted())
        means = [p.spec.name for p in self._plans if p.spec.pooling == "mean"]
        self._weighted_mean = means if self._is_weighted else []
        self.strict = strict
        self._counting = False
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
        self._fused = FusedLookup(self._plans)
        self._ahead = AheadLookup(self._plans)
        self._rewritten = RewrittenLookup(self._plans)
        self._stock = StockLookup(self._plans, self._output_names)
        self._direct = DirectLookup(self)
        self.sharded_rewriter = ShardedRewriter(self)
        self.sharded = ShardedLookup(self)
        counts = torch.zeros(len(self._dims), 2, dtype=torch.int64, device="cpu")
        self.register_buffer("_reads", counts, persistent=False)
        self.plain_batches: Tensor
        self.register_buffer("plain_batches", torch.zeros(1, dtype=torch.int64), persistent=False)
        checkpoint.install_hooks(self)
        self.rebuild_sums()

    def forward(self, features: KeyedJaggedTensor | RewrittenBatch) -> KeyedTensor:
        """Return the pooled embeddings of every feature, as the stock collection does.

        Args:
            features: Raw ids in any order, -1 is padding and adds nothing; or a batch that was
                rewritten ahead for this module.

        Returns:
            KeyedTensor of float32 ``[B, sum of D]``.

        Raises:
            GraceError: the batch is malformed.
            ValueError: an id is outside its table under ``raise``.
            NotImplementedError: a weighted table pools by MEAN, as in the stock collection.
            NotSupported: the module is in training mode, or the batch is VBE.
            StaleSums: a table changed since its sums were built.
            PlanMismatch: the batch was rewritten for another plan.
        """
        if self.training:
            raise NotSupported(
                "GraceEmbeddingBagCollection is inference only: call model.eval(), "
                "or restore_ the stock module to train"
            )
        if self._weighted_mean:
            raise NotImplementedError(
                f"table {self._weighted_mean[0]!r} is weighted and pools by MEAN: the stock "
                "collection refuses that too; pool by SUM, or restore_ the stock module"
            )
        if self.is_sharded:
            rewritten = self.sharded_rewriter(features)
            answers = {t: inner(rewritten[0]) for t, inner in self.inner_collections().items()}
            return self.sharded(answers, rewritten[1], rewritten[2])
        if not self._direct.serves(self):
            self._direct = DirectLookup(self)
        lookup = self._direct.lookup_for(features)
        if lookup is not None:
            pooled, reads = self._direct(lookup, features)
            self.count_reads(lookup.chosen, reads)
            return self._keyed(pooled)
        # Under a tracer features are a Proxy: in a graph fused tables rewrite in line, whatever
        # comes, and tables planned ahead take both.
        rewritten = isinstance(features, RewrittenBatch)
        bags: Bags | None = None
        if not rewritten or self._stock.chosen:
            ids, offsets, weights, stride, positions = bags_of(
                features, self._input_names, self._is_weighted, self.strict
            )
            bags = (ids, offsets, weights, stride, positions)
        asked = bags[0] if bags is not None else features.bags.values()
        guard = torch.ops.grace.require_fresh(asked, *self.stored_state())
        pieces: dict[int, Tensor] = {}
        for lookup in (self._rewritten,) if rewritten else (self._fused, self._ahead):
            if not lookup.chosen:
                continue
            if isinstance(lookup, FusedLookup):
                pooled, reads = lookup(self, bags, guard)  # type: ignore[arg-type]
            else:
                pooled, reads = lookup(self, features, bags, guard)
            self.count_reads(lookup.chosen, reads)
            if len(lookup.chosen) == len(self._dims):
                return self._keyed(pooled)
            columns = pooled.split(lookup.dims, dim=1)
            pieces |= {f: columns[place] for place, f in enumerate(lookup.chosen)}
        if self._stock.chosen and bags is not None:
            looked_up, reads = self._stock(self, bags, guard)
            self.count_reads(self._stock.chosen, reads)
            pieces |= dict(zip(self._stock.chosen, looked_up, strict=True))
        in_order = [pieces[f] for f in range(len(self._dims))]
        return self._keyed(torch.ops.grace.join_columns(in_order))

    def extra_repr(self) -> str:
        """Say how often plain bags came where rewritten ones were planned."""
        if not self._ahead.chosen:
            return ""
        return f"rewriting=ahead, plain_batches={int(self.plain_batches)}"

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
    def lookups(self) -> tuple[FusedLookup, RewrittenLookup]:
        """Who serves plain and rewritten batches with one op, where they serve all features."""
        return self._fused, self._rewritten

    @property
    def is_sharded(self) -> bool:
        """Whether DistributedModelParallel sharded its collections."""
        modules: Any = self._modules
        return any(_torchrec.is_sharded(modules[tier]) for tier in TIERS if tier in modules)

    @property
    def has_ahead(self) -> bool:
        """Whether a table is planned ``ahead``."""
        return bool(self._ahead.chosen)

    def warm_up(self, num_threads: int) -> None:
        """Compile the lookups now and not in the first request (int32 ids are left to theirs)."""
        self._direct.warm_up(num_threads)

    @property
    def input_names(self) -> list[str]:
        """Feature of the batch behind each output feature."""
        return self._input_names

    @property
    def output_names(self) -> list[str]:
        """Key of each output feature (``feature@table`` where features repeat)."""
        return self._output_names

    @property
    def dims(self) -> list[int]:
        """Dimension of each output feature."""
        return self._dims

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
        # One table of stored rows has its turn in each forward.
        return len(rows) * max((-(-n // freshness.rows_a_call(n)) for n in rows), default=0)

    def extra_bytes_of(self, table: str) -> int:
        """Every byte held beside an original table: stored rows, their sets, codes."""
        names = [name for name, (_, t) in self._sets.items() if self._configs[t].name == table]
        held = [part for name in names for part in self.sets_of(name)]
        held += [self.stored(self._sets[name][1], self._sets[name][0]) for name in names]
        index = next(t for t, config in enumerate(self._configs) if config.name == table)
        held += [self.rewriter.item_codes()[index], self.rewriter.hot_rows()[index]]
        code = self.rewriter.item_codes()[index]
        packed_bytes = packed_codes(code).num_bytes if code.is_cpu else 0
        return sum(tensor.nbytes for tensor in held) + packed_bytes

    @contextmanager
    def counting_reads(self) -> Iterator[Tensor]:
        """Count, inside the block, ids asked for and rows read: int64 ``[F, 2]`` by feature."""
        self._reads.zero_()
        self._counting = True
        try:
            yield self._reads
        finally:
            self._counting = False

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
            refuse_unreadable(repr(config.name), fn(weight.new_empty(0)))

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

    def count_reads(self, chosen: list[int], reads: Any) -> None:
        """Add the reads of the features ``chosen``, only inside ``counting_reads``."""
        if self._counting:
            self._reads[chosen] += torch.as_tensor(reads)

    def _keyed(self, pooled: Tensor) -> KeyedTensor:
        """Return the output as the stock collection names it."""
        return KeyedTensor(keys=self._output_names, length_per_key=self._dims, values=pooled)


def stored_name(table: str, tier: str) -> str:
    """Return the name of the table of stored rows beside ``table`` in a tier."""
    return f"{table}__{tier}_rows"
