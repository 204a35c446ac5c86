"""TableBatchCollection: the served form of a collection, its rows in fbgemm's table batches.

Flow: stock EmbeddingBagCollection + TablePlans -> *this module*, filled from float rows -> traced,
scheduled, saved.  One quantised collection for each memory tier: originals beside stored rows.
Stored rows are summed from the float rows and packed then, never summed from packed rows.
On the CPU rows of the table's own type are read by our lookup straight from the table batches'
memory; as soon as one table has packed rows with wider sums, and on shards and GPUs, all tables of
the collection go through the table batches themselves.
Shapes: F features, B bags of each, N rows, R stored rows, D dimension.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torchrec.distributed.types import BoundsCheckMode
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
)
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.fitting import plan_of_each
from grace_torchrec.modules.rewriter import Rewriter
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.serve.direct_rows import DirectRows
from grace_torchrec.serve.inner_tables import InnerTables
from grace_torchrec.serve.parts import PartsLookup, Splitter
from grace_torchrec.serve.row_types import LARGEST_HALF, beyond, pack_rows
from grace_torchrec.serve.table_pieces import TablePiece, batches_of, fill, own_memory, pieces_of
from grace_torchrec.sums.build_rows import sum_sets

TABLE_BATCH = "IntNBitTableBatchedEmbeddingBagsCodegen"  # the operator that tracers keep whole
FILLED_ROWS = 1 << 16  # rows packed at a time


class TableBatchCollection(EmbeddingBagCollectionInterface):  # type: ignore[misc]  # untyped
    """Same keys, order and shapes as the collection it stands for; inference only.

    Args:
        collection: The stock collection; read for its configs and types, never changed or kept.
        plans: Plan of each of its tables, by table name.
        row_types: Type of the rows of each table, by table name.
        bad_ids: What an id outside its table does: ``raise``, ``drop`` or ``zero_row``.
        strict: Refuse a batch whose weights would be ignored (default: warn once).
        path: Dotted path in its model.
        device: Where the table batches are made: the CPU, or ``meta`` to give them rows later.
        types_apart: A table batch for each type of rows too, not only for each memory.

    Attributes:
        path: As given.
        strict: As given.

    Raises:
        PlanMismatch: a table has no plan, or one that was made for another table.
    """

    looks_up_rows = True  # what segments ask for a round of embeddings

    def __init__(
        self,
        collection: EmbeddingBagCollection,
        plans: Mapping[str, TablePlan],
        row_types: Mapping[str, str],
        *,
        bad_ids: str = "raise",
        strict: bool = False,
        path: str = "",
        device: str = "cpu",
        types_apart: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.strict = path, strict
        self._configs = list(collection.embedding_bag_configs())
        # Every feature is rewritten ahead where bags come rewritten: nothing is looked up as stock.
        self._plans = [
            replace(plan, lookup="fused") if plan.lookup == "stock" else plan
            for plan in plan_of_each(collection, plans)
        ]
        self._is_weighted = bool(collection.is_weighted())
        self._input_names = [f for config in self._configs for f in config.feature_names]
        self._output_names = _torchrec.output_names(self._configs)
        self._dims = [c.embedding_dim for c in self._configs for _ in c.feature_names]
        names = [f"{path}/{name}" if path else name for name in self._output_names]
        rewriter = Rewriter(self._plans, names, bad_ids)
        self.splitter = Splitter(
            rewriter, self._plans, self._input_names, path,
            is_weighted=self._is_weighted, strict=strict,
        )  # fmt: skip
        types = [row_types[config.name] for config in self._configs]
        inner = InnerTables.of(self._configs, self._plans, types, names, types_apart=types_apart)
        self._type_of, self._sets = inner.type_of, inner.sets
        of_feature = [plan for plan in self._plans for _ in plan.spec.features]
        self.lookup = PartsLookup(
            {
                name: self._batches(held, torch.device(device))
                for name, held in inner.groups.items()
            },
            [inner.parts(name) for name in names],
            [plan.spec.pooling == "mean" for plan in of_feature],
        )
        self._direct: DirectRows | None = None
        self.eval()

    def forward(self, features: KeyedJaggedTensor | RewrittenBatch) -> KeyedTensor:
        """Return the pooled embeddings of every feature, as the stock collection does.

        Args:
            features: Raw ids in any order, -1 is padding and adds nothing; or a batch that was
                rewritten ahead for this module.

        Returns:
            KeyedTensor of float32 ``[B, sum of D]``.

        Raises:
            GraceError: the batch is malformed.
            OutsideTable: an id is outside its table under ``raise``, or a rewritten row.
            NotSupported: the batch is VBE.
            PlanMismatch: the batch was rewritten for another plan.
        """
        direct = self._direct
        if direct is not None:
            if isinstance(features, KeyedJaggedTensor):
                self.splitter.count_plain()  # which stays out of this path otherwise
            return self._keyed(direct(features))
        parts, lengths, stride = self.splitter(features)
        return self._keyed(self.lookup(parts, lengths, stride))

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the configs of the original tables."""
        return self._configs

    def is_weighted(self) -> bool:
        """Return whether bags carry weights."""
        return self._is_weighted

    @property
    def rewriter(self) -> Rewriter:
        """Turns bags into rows."""
        return self.splitter.rewriter

    @property
    def has_ahead(self) -> bool:
        """Whether a table is planned ``ahead``."""
        return any(plan.lookup == "ahead" for plan in self._plans)

    @property
    def plain_batches(self) -> int:
        """Batches that came plain for tables planned ``ahead``, both slots together."""
        return int(self.splitter.plain_batches)

    @property
    def is_direct(self) -> bool:
        """Whether our lookup reads the rows, not the table batches themselves."""
        return self._direct is not None

    @property
    def is_whole(self) -> bool:
        """Whether its tables are not sharded."""
        inner = self.inner_collections().values()
        return all(isinstance(module, QuantEmbeddingBagCollection) for module in inner)

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
    def table_plans(self) -> list[TablePlan]:
        """The plans of the tables, in order."""
        return list(self._plans)

    @property
    def type_of(self) -> dict[str, str]:
        """Name of an inner table, of originals or stored rows -> type of its rows."""
        return dict(self._type_of)

    @property
    def sets(self) -> dict[str, tuple[int, Tensor, Tensor]]:
        """Name of a table of stored rows -> number of its table, indptr and items of its sets."""
        return dict(self._sets)

    def pieces(self) -> dict[str, list[TablePiece]]:
        """Return inner table name -> where its rows lie."""
        return pieces_of(self.lookup)

    @torch.no_grad()
    def fill_from(self, weights: Mapping[str, Tensor]) -> None:
        """Pack the float rows of every table, and the sums formed from them, into the batches.

        Args:
            weights: Table name -> ``[N, D]``.

        Raises:
            NotSupported: a row, or a sum, is too large for the type it is packed as.
        """
        pieces = self.pieces()
        for config in self._configs:
            rows, row_type = weights[config.name].detach(), self._type_of[config.name]
            starts = range(0, rows.shape[0], FILLED_ROWS)
            fill(
                pieces[config.name],
                (self._packed(config.name, k, rows[k : k + FILLED_ROWS], row_type) for k in starts),
            )
        for name, (table, indptr, items) in self._sets.items():
            rows, row_type = weights[self._configs[table].name].detach(), self._type_of[name]
            starts = range(0, indptr.numel() - 1, FILLED_ROWS)
            sums = ((k, sum_sets(rows, indptr[k : k + FILLED_ROWS + 1], items)) for k in starts)
            fill(pieces[name], (self._packed(name, k, some, row_type) for k, some in sums))

    def lay_out(self) -> None:
        """Find where the rows lie; again whenever they have moved."""
        self._direct = DirectRows.of(self)

    def warm_up(self, num_threads: int) -> None:
        """Compile the lookups now and not in the first request."""
        if self._direct is not None:
            self._direct.warm_up(num_threads)

    def own_rows(self) -> None:
        """Move every row to memory of its own: a twin's lie in that of its original."""
        for batch in batches_of(self.lookup):
            own_memory(batch)
        self.lay_out()

    def replace_inner(self, change: Mapping[str, nn.Module]) -> None:
        """Put other collections (shards) in the place of the inner ones."""
        for name, module in change.items():
            setattr(self.lookup, name, module)
        self._direct = None

    def inner_collections(self) -> dict[str, nn.Module]:
        """Return the collections that hold rows by name: the tier, and the type if apart."""
        return {name: getattr(self.lookup, name) for name in self.lookup.names}

    def _batches(
        self, configs: list[EmbeddingBagConfig], device: torch.device
    ) -> QuantEmbeddingBagCollection:
        """Make a table batch, without rows yet."""
        collection = QuantEmbeddingBagCollection(
            configs,
            self._is_weighted,
            device,
            output_dtype=torch.float32,
            register_tbes=True,
            row_alignment=1,
            cache_features_order=True,  # the parts always stand in the same order
        )
        for batch in collection.tbes:  # rewriting has dealt with bad ids
            batch.bounds_check_mode_int = BoundsCheckMode.NONE.value
        return collection

    def _packed(self, inner_table: str, first: int, rows_KD: Tensor, row_type: str) -> Tensor:
        """Pack rows that begin at ``first``; refuse what would become infinite."""
        bad = torch.nonzero(beyond(rows_KD, row_type))
        if bad.numel():
            of = f"{self.path}.{inner_table}" if self.path else inner_table
            raise NotSupported(
                f"table {of!r}: row {first + int(bad[0])} is beyond {LARGEST_HALF:g}, the most that "
                f"{row_type} rows hold; convert it with row_dtype='fp32'"
            )
        return pack_rows(rows_KD, row_type)

    def _keyed(self, pooled: Tensor) -> KeyedTensor:
        """Return the output as the stock collection names it."""
        return KeyedTensor(keys=self._output_names, length_per_key=self._dims, values=pooled)
