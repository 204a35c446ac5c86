"""Direct rows: our CPU lookup over the memory of fbgemm's table batches.

Flow: checked bags, or a RewrittenBatch -> *DirectRows* -> pooled columns in one kernel call.
A table batch on the CPU holds the rows of a table one after the other, without padding.  All rows
of a table must be of one type: packed rows, whose sums are wider, are left to the table batches.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels import cpu, ops, ops_rows
from grace_kernels.op_inputs import subset_tables
from grace_kernels.table_rows import FeatureRows, TableRows
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.one_call import looked_up, pooled_rows, served_bags
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.plans.inner_tables import TIERS, stored_name
from grace_torchrec.recent import Recent
from grace_torchrec.serve.table_pieces import TablePiece, batch_rows

if TYPE_CHECKING:
    from grace_torchrec.serve.table_batch_collection import TableBatchCollection

VALUES = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.uint8}


class DirectRows:
    """Serves one collection; made anew when its rows move.

    Args:
        owner: The collection.
        plain: Every table with its codes, or without where its bags are to come rewritten.
        rewritten: Every table, for bags that came rewritten.
    """

    def __init__(
        self,
        owner: "TableBatchCollection",
        plain: Sequence[TableRows],
        rewritten: Sequence[TableRows],
    ) -> None:
        self._owner = owner
        rewriter = owner.rewriter
        table_of, plans = rewriter.table_of, owner.table_plans
        self._mean = [plans[t].spec.pooling == "mean" for t in table_of]
        self._plain = [plain[t] for t in table_of]
        places = list(range(len(table_of)))
        self._rewritten = FeatureRows([rewritten[t] for t in table_of], places, self._mean)
        self._by_position: Recent[tuple[int, ...], FeatureRows] = Recent()
        self._by_keys: Recent[tuple[str, ...], FeatureRows] = Recent()
        self._serves_in_one_call = not owner.is_weighted()

    @classmethod
    def of(cls, owner: "TableBatchCollection") -> "DirectRows | None":
        """Lay the tables out; None where the table batches have to look up themselves."""
        pieces, types = owner.pieces(), owner.type_of
        whole = all(len(p) == 1 and _is_plain_memory(p[0]) for p in pieces.values())
        if not whole or any(kind not in VALUES for kind in types.values()):
            return None
        rewriter = owner.rewriter
        arrays = _Arrays(pieces)
        codes = rewriter.item_codes()
        subsets = subset_tables(*rewriter.subsets(), len(codes))
        plain, rewritten = [], []
        for t, plan in enumerate(owner.table_plans):
            name = plan.spec.name
            rows, beside = arrays(name, types[name]), [stored_name(name, tier) for tier in TIERS]
            if any(types.get(held, types[name]) != types[name] for held in beside):
                return None
            hbm, host = (
                arrays(held, types[held]) if held in pieces else rows[:0] for held in beside
            )
            code = ops.packed_codes(codes[t])
            rest = rewriter.hot_rows()[t].numpy(), rewriter.num_hbm_sums[t]
            rewritten.append(TableRows(rows, hbm, host, cpu.EMPTY_I32, *rest))
            in_line = plan.lookup != "ahead"
            plain.append(
                TableRows(rows, hbm, host, code, *rest, subsets[t]) if in_line else rewritten[-1]
            )
        return cls(owner, plain, rewritten)

    def __call__(self, features: KeyedJaggedTensor | RewrittenBatch) -> Tensor:
        """Return float32 ``[B, sum of D]``; errors as of the collection."""
        owner = self._owner
        rewriter = owner.rewriter
        if isinstance(features, RewrittenBatch):
            given = features.rows_for(owner.path, rewriter.stamp)
            if _torchrec.is_plain_eager(features.bags):
                pooled = pooled_rows(self._rewritten, given)
                if pooled is not None:
                    return pooled
            places = list(range(len(rewriter.labels)))
            parts = given.rows, given.offsets, given.weights, given.given_lengths
            ops_rows.check_parts(*parts, places)
            return ops_rows.pool_checked(self._rewritten, *parts, rewriter.labels)
        if self._serves_in_one_call and _torchrec.is_plain_eager(features):
            served = served_bags(features, self._of_keys, rewriter.policy)
            if served is not None:
                return served[0]
        bags = bags_of(features, owner.input_names, owner.is_weighted(), owner.strict)
        *_, positions = bags
        laid_out = self._at(tuple(positions))
        return looked_up(laid_out, bags, rewriter.policy, rewriter.labels.__getitem__)[0]

    def warm_up(self, num_threads: int) -> None:
        """Compile what the first batch of the usual form will need."""
        weighted = self._owner.is_weighted()
        usual = self._at(tuple(range(len(self._mean))))
        cpu.warm_up(num_threads, [usual], weighted, False)
        if self._owner.has_ahead:
            cpu.warm_up(num_threads, [self._rewritten], weighted, True)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the collection has rows elsewhere: it lays them out itself."""
        return

    def _of_keys(self, keys: tuple[str, ...]) -> FeatureRows | None:
        """Return the features for a batch with these keys, None if one is missing."""
        found = self._by_keys.get(keys)
        if found is None:
            place = {key: number for number, key in enumerate(keys)}
            names = self._owner.input_names
            if not all(name in place for name in names):
                return None
            found = self._by_keys[keys] = self._at(tuple(place[name] for name in names))
        return found

    def _at(self, positions: tuple[int, ...]) -> FeatureRows:
        """Return the features for a batch that has them at these positions."""
        found = self._by_position.get(positions)
        if found is None:
            found = FeatureRows(self._plain, list(positions), self._mean)
            self._by_position[positions] = found
        return found


def _is_plain_memory(piece: TablePiece) -> bool:
    """Tell whether a whole table lies row after row in memory of the CPU."""
    batch = piece.batch
    return bool(batch.use_cpu) and batch.row_alignment == 1 and not batch.weights_host.is_meta


class _Arrays:
    """Finds the rows of inner tables as arrays over the table batches' own memory."""

    def __init__(self, pieces: Mapping[str, Sequence[TablePiece]]) -> None:
        self._pieces = pieces
        batches = dict.fromkeys(held[0].batch for held in pieces.values())
        self._rows = {batch: batch_rows(batch) for batch in batches}

    def __call__(self, inner_table: str, kind: str) -> npt.NDArray[Any]:
        """Return the rows of one table, of the given type."""
        piece = self._pieces[inner_table][0]
        rows = self._rows[piece.batch][piece.place]
        array: npt.NDArray[Any] = rows.view(VALUES[kind]).numpy()
        return array
