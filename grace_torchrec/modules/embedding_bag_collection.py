"""GraceEmbeddingBagCollection: the drop-in that reads stored sums where it can.

Flow: stock EmbeddingBagCollection + TablePlans -> *this module* -> KeyedTensor.
Source: GRACE, ASPLOS'23.  Its tables are those of :mod:`grace_torchrec.modules.stored_tables`; here
is who looks them up.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.errors import NotInStock, NotSupported
from grace_torchrec.modules import checkpoint
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.direct import DirectLookup
from grace_torchrec.modules.lookup import (
    AheadLookup,
    Bags,
    FusedLookup,
    RewrittenLookup,
    StockLookup,
)
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.modules.sharded_lookup import ShardedLookup
from grace_torchrec.modules.sharded_rewriter import ShardedRewriter
from grace_torchrec.modules.stored_tables import StoredTables
from grace_torchrec.plans.plan import TablePlan

torch.fx.wrap("bags_of")  # fx looks names up in the module that calls them


class GraceEmbeddingBagCollection(StoredTables):
    """Same keys, order, types, shapes and state-dict keys as the collection it stands for.

    Inference only: forward raises in training mode, a backward through the output raises
    (:class:`~grace_torchrec.errors.NoBackward`, also a NotImplementedError), and
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
    swap_mark: object = None  # what accelerate_ knows it by; a copy has another one

    def __init__(
        self,
        collection: EmbeddingBagCollection,
        plans: Mapping[str, TablePlan],
        *,
        bad_ids: str = "raise",
        strict: bool = False,
        path: str = "",
    ) -> None:
        super().__init__(collection, plans, bad_ids)
        self.path = path
        means = [plan.spec.name for plan in self._plans if plan.spec.pooling == "mean"]
        self._weighted_mean = means if self._is_weighted else []
        self.strict = strict
        self._counting = False
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
            OutsideTable: an id is outside its table under ``raise``; a ValueError too.
            NotInStock: a weighted table pools by MEAN, as in the stock collection; a
                NotImplementedError too.
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
            raise NotInStock(
                f"table {self._weighted_mean[0]!r} is weighted and pools by MEAN: the stock "
                "collection refuses that too; pool by SUM, or restore_ the stock module"
            )
        if self.is_sharded:
            rewritten = self.sharded_rewriter(features)
            answers = {t: inner(rewritten[0]) for t, inner in self.inner_collections().items()}
            return self.sharded(answers, rewritten[1], rewritten[2])
        if not self._direct.serves(self):
            self._direct = DirectLookup(self)
        served = self._direct(features)
        if served is not None:
            lookup, pooled, reads = served
            self.count_reads(lookup.chosen, reads)
            return self._keyed(pooled)
        return self._by_ops(features)

    def _by_ops(self, features: KeyedJaggedTensor | RewrittenBatch) -> KeyedTensor:
        """Return what forward does, by registered ops: each lookup serves its features."""
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

    @property
    def lookups(self) -> tuple[FusedLookup, RewrittenLookup]:
        """Who serves plain and rewritten batches with one op, where they serve all features."""
        return self._fused, self._rewritten

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

    @contextmanager
    def counting_reads(self) -> Iterator[Tensor]:
        """Count, inside the block, ids asked for and rows read: int64 ``[F, 2]`` by feature."""
        self._reads.zero_()
        self._counting = True
        try:
            yield self._reads
        finally:
            self._counting = False

    def count_reads(self, chosen: list[int], reads: Any) -> None:
        """Add the reads of the features ``chosen``, only inside ``counting_reads``."""
        if self._counting:
            self._reads[chosen] += torch.as_tensor(reads)

    def _keyed(self, pooled: Tensor) -> KeyedTensor:
        """Return the output as the stock collection names it."""
        return KeyedTensor(keys=self._output_names, length_per_key=self._dims, values=pooled)
