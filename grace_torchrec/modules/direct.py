"""Direct lookup: the whole forward as one kernel call, while nothing traces it.

Flow: checked bags, or a RewrittenBatch -> *DirectLookup* -> pooled columns, without the
dispatcher in between.  Registered ops cost some 60 us a call in Python, which small batches feel.
Meaning, checks and errors are those of the ops, which serve whenever somebody traces, compiles, or
asks for gradients.
Shapes: F features, B bags of each feature, D dimension.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels import cpu, ops_rows
from grace_kernels.table_rows import FeatureRows
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.laid_out import LaidOut
from grace_torchrec.modules.lookup import AheadLookup, Bags, Lookup
from grace_torchrec.modules.one_call import looked_up, pooled_rows, served_bags
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection


class DirectLookup:
    """Serves one module while its tables are on the CPU.

    Args:
        owner: The module.
    """

    def __init__(self, owner: "GraceEmbeddingBagCollection") -> None:
        self._owner = owner
        self._tables: LaidOut | None = None

    def serves(self, module: object) -> bool:
        """Tell whether this belongs to ``module``: a shallow copy brings that of its original."""
        return module is self._owner

    def warm_up(self, num_threads: int) -> None:
        """Compile what the first batch of the usual form will need, or read it from the disk cache."""
        owner = self._owner
        tables, weighted = self._current(), owner.is_weighted()
        if tables is None:
            return
        for lookup, ahead in zip(owner.lookups, (False, bool(owner.has_ahead)), strict=True):
            if lookup.chosen:
                features = tables.features(lookup, tuple(range(len(lookup.chosen))))
                cpu.warm_up(num_threads, [features], weighted, ahead)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles lay their tables out themselves."""
        return {"_owner": self._owner, "_tables": None}

    def __call__(self, features: Any) -> tuple[Lookup, Tensor, Any] | None:
        """Serve a whole batch here; None where the ops have to.

        Args:
            features: Whatever forward was given.

        Returns:
            The lookup that served, pooled float32 ``[B, sum of D]``, reads int64 ``[F, 2]``. None
            also while somebody traces, or could ask for gradients: the ops refuse those.

        Raises:
            GraceError: the batch is malformed.
            OutsideTable: an id is outside its table under RAISE, or a row of a rewritten batch is.
            StaleSums: a table changed since its sums were built.
            PlanMismatch: the batch was rewritten for another plan.
        """
        owner = self._owner
        is_rewritten = isinstance(features, RewrittenBatch)
        lookup = owner.lookups[is_rewritten]
        batch = features.bags if is_rewritten else features
        if len(lookup.chosen) != len(owner.dims) or not _torchrec.is_plain_eager(batch):
            return None
        if torch.is_grad_enabled() and self._asks_for_gradients(batch):
            return None
        if isinstance(lookup, AheadLookup) and is_rewritten:
            return self._serve_rows(lookup, features)
        return self._serve(lookup, features) or self._serve_any(lookup, features)

    def _asks_for_gradients(self, batch: KeyedJaggedTensor) -> bool:
        """Tell whether a table, or the weights of the batch, may be asked for gradients."""
        of_batch = batch.weights_or_none()
        asked = [*self._owner.weights(), *([] if of_batch is None else [of_batch])]
        return any(tensor.requires_grad for tensor in asked)

    def _serve_rows(
        self, lookup: AheadLookup, features: RewrittenBatch
    ) -> tuple[Lookup, Tensor, Any] | None:
        """Serve a batch that was rewritten."""
        given = features.rows_for(self._owner.path, self._owner.rewriter.stamp)
        tables, places = self._current(), lookup.places
        if tables is None:
            return None
        pooled = self._look_up_rows(lookup, tables, given)
        if places == list(range(given.reads.shape[0])):
            return lookup, pooled, given.reads  # picking rows of a tensor takes 10 us
        return lookup, pooled, given.reads[places]

    def _serve(
        self, lookup: Lookup, features: KeyedJaggedTensor
    ) -> tuple[Lookup, Tensor, Any] | None:
        """Serve a batch of the usual form by one call, or return None: others say what is wrong."""
        owner = self._owner
        if owner.is_weighted():
            return None

        def features_of(keys: tuple[str, ...]) -> FeatureRows | None:
            """Look for the tables only for a batch that may be served."""
            tables = self._current()
            if tables is None:
                return None
            return tables.features_of_keys(lookup, owner.input_names, keys)

        served = served_bags(features, features_of, owner.rewriter.policy)
        return None if served is None else (lookup, *served)

    def _serve_any(
        self, lookup: Lookup, features: KeyedJaggedTensor
    ) -> tuple[Lookup, Tensor, Any] | None:
        """Serve a batch of any form, or say what is wrong with it."""
        owner = self._owner
        bags = bags_of(features, owner.input_names, owner.is_weighted(), owner.strict)
        tables = self._current()
        if tables is None:
            return None
        pooled, reads = self._look_up(lookup, tables, bags)
        return lookup, pooled, reads

    def _look_up(self, lookup: Lookup, tables: LaidOut, bags: Bags) -> tuple[Tensor, Any]:
        """Return pooled float32 ``[B, sum of D]`` of the features of a lookup, and their reads.

        Args:
            lookup: Whose features.
            tables: Current.
            bags: Checked bags on the CPU.

        Raises:
            OutsideTable: an id is outside its table under RAISE.
        """
        *_, positions = bags
        features = tables.features(lookup, tuple(positions[f] for f in lookup.chosen))
        labels = self._owner.rewriter.labels
        return looked_up(features, bags, tables.policy, lambda f: labels[lookup.chosen[f]])

    def _look_up_rows(self, lookup: AheadLookup, tables: LaidOut, given: RewrittenRows) -> Tensor:
        """Return pooled float32 ``[B, sum of D]`` of rewritten features.

        Args:
            lookup: Whose features.
            tables: Current.
            given: Rows of a RewrittenBatch.

        Raises:
            GraceError: parts of the batch do not fit together, or a row is outside its table.
        """
        places = lookup.places
        features = tables.features(lookup, tuple(places))
        pooled = pooled_rows(features, given)
        if pooled is not None:
            return pooled
        ops_rows.check_parts(given.rows, given.offsets, given.weights, given.given_lengths, places)
        labels = [self._owner.rewriter.labels[f] for f in lookup.chosen]
        return ops_rows.pool_checked(
            features, given.rows, given.offsets, given.weights, given.given_lengths, labels
        )

    def _current(self) -> LaidOut | None:
        """Return the tables, laid out anew if one was given other rows or codes; check their sums.

        None where one is not on the CPU.

        Raises:
            StaleSums: a table changed since its sums were built.
        """
        found = self._tables
        if found is None or not found.is_current(self._owner):
            if not all(weight.is_cpu for weight in self._owner.weights()):
                return None
            found = self._tables = LaidOut(self._owner)
        found.watch.check()
        return found
