"""Proof: a converted model against the float rows it was made from, on recorded bags.

Flow: stock model + Served + Profile -> *prove* -> the Refresher flips, or does not.
Every feature of every collection is looked up, and each pooled value is compared with the float64
sum of the float rows of its bag.  Derived: what a value may differ.  For rows of the model's own type
that is rounding, as in ``verify``; for packed rows, half a step of each row that is read and the rounding of
its float16 scale and bias.
Shapes: F features, B bags of each, N rows, D dimension, K rows that are read.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.modules.rewrite_ahead import rewrite_one
from grace_torchrec.modules.verify import PER_ROOT_OF_LENGTH, ROUNDING, exact_sums
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.table_spec import stock_collections
from grace_torchrec.serve.served import Served
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.trace import Trace

STEPS = {"int8": 255, "int4": 15}
HALF_ROUNDING = 2.0**-10  # of a float16, both ways
NO_BAGS = Trace(np.zeros(1, np.int64), np.zeros(0, np.int32), 1)


@dataclass(frozen=True)
class Proof:
    """What was compared.

    Attributes:
        values: Pooled values.
        worst: Largest difference, over what it may be: 1 or less is equal.
        where: Feature of the largest difference.
    """

    values: int
    worst: float
    where: str

    def __bool__(self) -> bool:
        """Whether every value is what it must be."""
        return self.worst <= 1.0


def prove(model: nn.Module, served: Served, profile: Profile, most_bags: int = 512) -> Proof:
    """Compare all collections of a converted model with the float rows.

    Args:
        model: The stock model it was made from; only read.
        served: Target ``module``.
        profile: Recorded bags; a table without bags is looked up with empty ones.
        most_bags: Bags of each feature.
    """
    values, worst, where = 0, 0.0, ""
    stock = dict(stock_collections(model))
    for path, collection in served.collections.items():
        bags = _bags(collection, profile, most_bags)
        # Plain bags would read the plain rows of tables planned ahead, and prove nothing of their sums.
        given = rewrite_one(bags, {path: collection}) if collection.has_ahead else bags
        with torch.no_grad():
            pooled = collection(given)
        columns = pooled.values().split(pooled.length_per_key(), dim=1)
        tables = [table for table in collection.table_plans for _ in table.spec.features]
        each = zip(collection.output_names, collection.input_names, tables, columns, strict=True)
        for output, feature, table, got in each:
            weight = stock[path].embedding_bags[table.spec.name].weight.detach()
            row_type = served.conversion.row_types[table.spec.key]
            one = bags[feature]
            beyond = _beyond(one, weight, table, row_type, got)
            values += got.numel()
            if beyond > worst or not where:
                worst, where = max(worst, beyond), f"{path}.{output}" if path else output
    return Proof(values, worst, where)


def _bags(collection: TableBatchCollection, profile: Profile, most_bags: int) -> KeyedJaggedTensor:
    """Make one batch of recorded bags for every feature of a collection."""
    read_by: dict[str, list[TablePlan]] = {}
    for table in collection.table_plans:
        for feature in table.spec.features:
            read_by.setdefault(feature, []).append(table)
    lengths, ids, weights = [], [], []
    for number, tables in enumerate(read_by.values()):
        least = min(table.spec.num_rows for table in tables)
        found = [profile.tables[t.spec.name].trace for t in tables if t.spec.name in profile.tables]
        lengths_B, ids_L, weights_L = _some(
            found[0] if found else NO_BAGS, least, most_bags, number
        )
        lengths.append(lengths_B)
        ids.append(ids_L)
        weights.append(weights_L)
    return KeyedJaggedTensor(
        keys=list(read_by),
        values=torch.from_numpy(np.concatenate(ids)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
        weights=torch.from_numpy(np.concatenate(weights)) if collection.is_weighted() else None,
    )


def _some(trace: Trace, num_rows: int, most_bags: int, turn: int) -> tuple[Any, Any, Any]:
    """Return lengths ``[most_bags]``, ids and weights of bags from all over a trace, then empty ones.

    Args:
        trace: Recorded bags.
        num_rows: Ids from here on are left out.
        most_bags: Bags.
        turn: Features of one table get different bags.
    """
    count = min(most_bags, trace.num_bags)
    picked = (np.linspace(0, trace.num_bags, count, endpoint=False) + turn) % max(trace.num_bags, 1)
    some = trace.take(picked.astype(np.int64))
    bag_L = np.repeat(np.arange(count), np.diff(some.offsets_B1))
    kept = some.ids_L < num_rows
    weights = some.weights_L if some.weights_L is not None else np.ones(some.num_ids, np.float32)
    lengths = np.bincount(bag_L[kept], minlength=most_bags)
    return lengths, some.ids_L[kept].astype(np.int64), weights[kept]


def _beyond(bags: Any, weight_ND: Tensor, table: TablePlan, row_type: str, got: Tensor) -> float:
    """Return the largest difference of one feature over what it may be."""
    rows, places = torch.unique(bags.values(), return_inverse=True)
    picked = weight_ND[rows]
    offsets, weights = bags.offsets().long(), bags.weights_or_none()
    want, size = exact_sums(picked, places, offsets, weights)
    lengths = bags.lengths().clamp(min=1).unsqueeze(1)
    own = row_type == table.spec.dtype
    rounding = ROUNDING[picked.dtype if own else torch.float32]
    room = size * (rounding + PER_ROOT_OF_LENGTH * lengths.sqrt())
    if not own:
        room = room + size * HALF_ROUNDING
        _, steps = exact_sums(_step_error(picked, row_type), places, offsets, weights)
        room = room + steps
    if table.spec.pooling == "mean":
        want, room = want / lengths, room / lengths
    error = (got.double() - want).abs().nan_to_num(torch.inf, torch.inf)
    same = got.eq(want.float()) | (got.isnan() & want.isnan())
    ratio = torch.where(same, 0.0, error / room.clamp(min=torch.finfo(torch.float32).tiny))
    return float(ratio.nan_to_num(torch.inf, torch.inf).max()) if ratio.numel() else 0.0


def _step_error(rows_KD: Tensor, row_type: str) -> Tensor:
    """Return how far a packed value may be from the float one, ``[K, 1]``; fp16: nothing more."""
    steps = STEPS.get(row_type)
    if steps is None:
        return torch.zeros(rows_KD.shape[0], 1, dtype=torch.float64)
    lowest, highest = rows_KD.double().aminmax(dim=1, keepdim=True)
    scale = (highest - lowest).clamp(min=1e-7)
    return scale * (0.5 / steps + HALF_ROUNDING) + lowest.abs() * HALF_ROUNDING
