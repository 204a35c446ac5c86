"""Parts: rewritten bags by the memory their rows lie in, and their lookup by table batches.

Flow: raw or rewritten bags -> *Splitter* -> one bag of plain rows, of stored rows in HBM and of
stored rows in host memory for each feature -> *PartsLookup*: the memories' collections, whose
outputs are added up.  The lookup uses stock operators only, so it can be scripted and run without us.
Shapes: F features, B bags of each, P rows, D dimension.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.lookup import tell_plain_batch
from grace_torchrec.modules.rewriter import Rewriter
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows
from grace_torchrec.modules.tier_bags import rows_in_line, tier_bags
from grace_torchrec.plans.plan import TablePlan


class Splitter(nn.Module):
    """Bags in, rewritten or not; the three parts of each feature out.

    Under a tracer it is one node: rewriting is an operator of its own in the graph.

    Args:
        rewriter: Rewrites plain bags; its names are the keys of the parts.
        plans: Of its tables.
        input_names: Feature of the batch behind each output feature.
        path: Dotted path of the collection: a RewrittenBatch holds its rows under this name.
        is_weighted: Whether bags carry weights.
        strict: Refuse a batch whose weights would be ignored.

    Attributes:
        num_sums: Sums stored for each table.
        plain_batches: int64 ``[1]``, batches that came plain for tables planned ``ahead``.
        is_counting: Whether such batches are counted and told.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        plans: Sequence[TablePlan],
        input_names: Sequence[str],
        path: str,
        *,
        is_weighted: bool,
        strict: bool,
    ) -> None:
        super().__init__()
        self.rewriter = rewriter
        self.num_sums = [plan.placement.num_sums for plan in plans]
        self._ahead = [plan.lookup == "ahead" for plan in plans]
        self.plain_batches = torch.zeros(1, dtype=torch.int64)
        self.is_counting = True
        self.input_names = list(input_names)
        self.path, self.is_weighted, self.strict = path, is_weighted, strict

    def forward(
        self, features: KeyedJaggedTensor | RewrittenBatch
    ) -> tuple[KeyedJaggedTensor, Tensor, int]:
        """Return the parts, the lengths of the given bags int64 ``[F, B]``, and B.

        Raises:
            GraceError: the batch is malformed.
            OutsideTable: an id is outside its table under ``raise``.
            OutsideTable: a rewritten row is outside its table and its sums.
            PlanMismatch: the batch was rewritten for another plan.
        """
        if isinstance(features, RewrittenBatch):
            given = features.rows_for(self.path, self.rewriter.stamp)
            stride = given.given_lengths.shape[1]
            return parts_of_rows(given, self.rewriter, self.num_sums), given.given_lengths, stride
        bags = bags_of(features, self.input_names, self.is_weighted, self.strict)
        self.count_plain()
        chosen = list(range(len(self.input_names)))
        if any(self._ahead):
            plain = rows_in_line(self.rewriter, bags, chosen, self._ahead)
            parts = parts_of_rows(plain, self.rewriter, self.num_sums)
            return parts, plain.given_lengths, bags[3]
        guard = torch.empty(0, dtype=torch.int8)  # these rows are ours alone: nothing goes stale
        parts, lengths, _ = self.rewriter(*bags, chosen, guard)
        return parts, lengths, bags[3]

    def count_plain(self) -> None:
        """Count a batch that came plain if a table is planned ``ahead``; the first is told."""
        if self.is_counting and any(self._ahead):
            pairs = zip(self.rewriter.labels, self.rewriter.table_of, strict=True)
            ahead = [label for label, table in pairs if self._ahead[table]]
            tell_plain_batch(self.path, ahead, self.plain_batches)


def parts_of_rows(
    given: RewrittenRows, rewriter: Rewriter, num_sums: Sequence[int]
) -> KeyedJaggedTensor:
    """Return rewritten rows as bags of plain rows, stored rows in HBM and in host memory.

    Args:
        given: Rows of all features of ``rewriter``, in its order.
        rewriter: Knows tables, hot rows and the names.
        num_sums: Sums stored for each table.

    Returns:
        Three bags for each feature; a batch of no bags is given as one empty bag of each.

    Raises:
        GraceError: the arrays do not belong together, or a row is outside its table and its sums.
    """
    places = [(given, feature) for feature in range(len(rewriter.table_of))]
    return tier_bags(rewriter, places, num_sums)


class PartsLookup(nn.Module):
    """The collections that hold rows, and which of their outputs add up to a feature.

    Args:
        inner: Name -> quantised collection, sharded or not.
        parts: For each output feature the (name of a collection, key of its output) that add up.
        mean: MEAN pooling, for each output feature.
    """

    def __init__(
        self,
        inner: Mapping[str, nn.Module],
        parts: Sequence[Sequence[tuple[str, str]]],
        mean: Sequence[bool],
    ) -> None:
        super().__init__()
        self.names = list(inner)
        for name, collection in inner.items():
            setattr(self, name, collection)
        self.parts = [list(places) for places in parts]
        self.mean = list(mean)

    def forward(self, parts: KeyedJaggedTensor, lengths: Tensor, stride: int) -> Tensor:
        """Return float32 ``[B, sum of D]``.

        Args:
            parts: Of a :class:`Splitter`.
            lengths: int64 ``[F, B]`` of the bags as they were given: MEAN divides by them.
            stride: Bags B of each feature.
        """
        looked_up = {name: getattr(self, name)(parts).to_dict() for name in self.names}
        columns = []
        for feature, places in enumerate(self.parts):
            column = looked_up[places[0][0]][places[0][1]]
            for name, key in places[1:]:
                column = column + looked_up[name][key]
            column = column[:stride]  # a batch of no bags was looked up as one empty bag
            if self.mean[feature]:
                given = lengths[feature].to(column.device)  # bags are rewritten on the CPU
                column = column / given.clamp(min=1).unsqueeze(1)
            columns.append(column)
        return torch.cat(columns, dim=1)
