"""What ``bench lookup`` times: stock lookups, ours, and what ours is made of, on the same rows.

Flow: GroupedBags + a table -> *make_entrants* -> the lookup case.  Every entrant is a function of
the number of a batch; all but the rewriting ones return pooled float32 ``[B, D]``.
``fused`` is our op alone, as ``embedding_bag`` and fbgemm's table batches are; ``in_line`` is the module around
it, as ``stock_ebc`` is one: a KeyedJaggedTensor in, a KeyedTensor out.  ``fused_other`` is ``fused`` with rows
prefetched in the way that this CPU does not use (while ids are rewritten, or by who sums).  ``forward`` is what a user of ``grace_torchrec.plan`` gets: the swapped module where the plan's
model says that rewriting in line pays, the stock collection where it says no.
Shapes: N rows, D dimension, B bags of a batch, L ids.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.planned import plan_of
from bench.subset_twin import subset_twin
from grace_kernels._prefetch import MIXES
from grace_kernels.cpu import (
    FeatureRows,
    TableRows,
    look_up_features,
    pool_features,
    rewrite_counted,
)
from grace_kernels.packed_codes import PackedCodes, pack_codes
from grace_kernels.reference import RAISE
from grace_kernels.subset_tables import SubsetTables
from grace_sharding.lookup_costs import LookupCosts
from grace_torchrec.calibration.grouped_bags import GroupedBags
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.rewrite_ahead import rewrite_one
from grace_torchrec.plans.cpu_lookup_cost import price_on_cpu
from grace_torchrec.plans.table_spec import table_specs

NO_CODES, NO_HOT = np.zeros(0, np.int32), np.zeros(0, np.int32)
Entrant = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class Table:
    """One table in every form that is timed.

    Attributes:
        stock: The stock collection.
        ours: Ours over the same rows, looked up in line.
        ahead: Ours over the same rows, planned ``ahead``.
        codes: Codes of its clusters, packed.
    """

    stock: EmbeddingBagCollection
    ours: GraceEmbeddingBagCollection
    ahead: GraceEmbeddingBagCollection
    codes: PackedCodes


def make_table(bags: GroupedBags, num_rows: int, dim: int) -> Table:
    """Return a table of random float32 rows with the sums of ``bags``."""
    config = EmbeddingBagConfig(
        name="t", embedding_dim=dim, num_embeddings=num_rows, feature_names=["f"]
    )
    stock = EmbeddingBagCollection(tables=[config]).eval()
    spec = table_specs(torch.nn.Sequential(stock))[0]
    plan = plan_of(spec, bags.sums)
    ours = GraceEmbeddingBagCollection(stock, {"t": plan})
    ahead = ours  # without sums there is nothing to rewrite
    if bags.sums.num_sums:
        ahead = GraceEmbeddingBagCollection(stock, {"t": replace(plan, lookup="ahead")})
    return Table(stock, ours, ahead, pack_codes(bags.sums.code.item_code_N))


def chosen_mode(
    bags: GroupedBags, num_rows: int, dim: int, saved: float, costs: LookupCosts | None
) -> str:
    """Return what the plan's model chooses for bags that arrive plain: ``fused`` or ``stock``.

    Args:
        bags: With their sums.
        num_rows: Rows of the table.
        dim: Columns, float32.
        saved: Share of the reads that the sums save.
        costs: Of this CPU; None: not known.
    """
    pays = price_on_cpu(num_rows, 4 * dim, bags.sums, saved, costs).pays
    return "fused" if pays else "stock"


def make_entrants(bags: GroupedBags, table: Table, mode: str) -> dict[str, Entrant]:
    """Return all entrants that read float32 rows, by name."""
    weight, stored = table.ours.weight(0).detach(), table.ours.stored(0, "host").detach()
    rows, sums, none = weight.numpy(), stored.numpy(), stored[:0].numpy()
    with_sums = TableRows(rows, none, sums, table.codes, NO_HOT, 0)
    plain = TableRows(rows, none, none, NO_CODES, NO_HOT, 0)
    kjts = [
        KeyedJaggedTensor(keys=["f"], values=ids, lengths=offsets.diff(), offsets=offsets)
        for ids, offsets in bags.batches
    ]
    rewritten = [rewrite_one(kjt, {"": table.ahead}) for kjt in kjts]
    code = bags.sums.code.item_code_N
    ordered = [(in_code_order(ids, offsets, code), offsets) for ids, offsets in bags.batches]
    served = table.ours if mode == "fused" else table.stock
    entrants: dict[str, Entrant] = {
        "embedding_bag": lambda k: F.embedding_bag(
            bags.batches[k][0], weight, bags.batches[k][1], mode="sum", include_last_offset=True
        ),
        "stock_ebc": lambda k: table.stock(kjts[k]).values(),
        "tbe": _table_batch(weight, bags),
        "tbe_inference": _inference_batch(weight, bags),
        "plain_gather": _fused(plain, bags.batches),
        "fused": _fused(with_sums, bags.batches),
        "fused_other": _fused(with_sums, bags.batches, not MIXES),
        "fused_ordered": _fused(with_sums, ordered),
        "in_line": lambda k: table.ours(kjts[k]).values(),
        "ahead": lambda k: table.ahead(rewritten[k]).values(),
        "forward": lambda k: served(kjts[k]).values(),
    }
    if bags.sums.num_sums:
        twin, subsets = subset_twin(bags.sums)
        codes = twin.code.item_code_N
        entrants["subset_fused"] = _fused(
            TableRows(rows, none, sums, codes, NO_HOT, 0, subsets), bags.batches
        )
    return entrants


def make_rewriting(bags: GroupedBags) -> dict[str, Entrant]:
    """Return rewriting alone, of raw ids, of ids in code order, and of the same with a subset code."""
    code = bags.sums.code.item_code_N
    packed = pack_codes(code)
    ordered = [(in_code_order(ids, offsets, code), offsets) for ids, offsets in bags.batches]

    def rewriting(
        batches: list[tuple[Tensor, Tensor]], packed: PackedCodes, subsets: SubsetTables | None
    ) -> Entrant:
        """Rewrite a batch and drop the result."""

        def run(k: int) -> Tensor:
            ids, offsets = batches[k]
            bag_arrays = ids.numpy(), offsets.numpy()
            rewrite_counted(*bag_arrays, None, packed, packed.num_items, RAISE, subsets)
            return torch.empty(0)

        return run

    entrants = {
        "rewrite": rewriting(bags.batches, packed, None),
        "rewrite_ordered": rewriting(ordered, packed, None),
    }
    if bags.sums.num_sums:
        twin, subsets = subset_twin(bags.sums)
        codes = pack_codes(twin.code.item_code_N)
        entrants["subset_rewrite"] = rewriting(bags.batches, codes, subsets)
    return entrants


def make_pooling(bags: GroupedBags, table: Table) -> Entrant:
    """Return the lookup of bags that were rewritten before, without the module around it."""
    weight, stored = table.ours.weight(0).detach(), table.ours.stored(0, "host").detach()
    num_rows, dim = weight.shape
    sums = stored.numpy()
    features = FeatureRows(
        [TableRows(weight.numpy(), sums[:0], sums, table.codes, NO_HOT, 0)], [0], [False]
    )
    return _pooling(features, bags, table.codes, num_rows, dim)


def make_int8(bags: GroupedBags, table: Table) -> dict[str, Entrant]:
    """Return fbgemm's int8 table batch, and our gather over the same rows and int8 sums, ahead."""
    from fbgemm_gpu.split_embedding_configs import SparseType

    weight, stored = table.ours.weight(0).detach(), table.ours.stored(0, "host").detach()
    num_rows, dim = weight.shape
    stock = _host_batch(num_rows, dim, SparseType.INT8)
    held = stock.weights_host[: num_rows * (dim + 4)].view(num_rows, dim + 4)
    held.copy_(int8_rows(weight))
    sums = int8_rows(stored)
    features = FeatureRows(
        [TableRows(held.numpy(), sums[:0].numpy(), sums.numpy(), NO_CODES, NO_HOT, 0)],
        [0],
        [False],
    )
    ahead = _pooling(features, bags, table.codes, num_rows, dim)
    ints = [(ids.int(), offsets.int()) for ids, offsets in bags.batches]
    return {"int8_stock": lambda k: stock(*ints[k]), "int8_ahead": ahead}


def _pooling(
    features: FeatureRows, bags: GroupedBags, codes: PackedCodes, num_rows: int, dim: int
) -> Entrant:
    """Rewrite all batches; return the lookup of their rows, ``dim`` columns each."""
    rewritten, given = [], []
    for ids, offsets in bags.batches:
        parts = rewrite_counted(ids.numpy(), offsets.numpy(), None, codes, num_rows, RAISE)
        rewritten.append(parts[1:3])
        given.append(np.diff(offsets.numpy())[None])

    def run(k: int) -> Tensor:
        rows, ends = rewritten[k]
        out = torch.empty(ends.size - 1, dim)
        pool_features(
            features, rows, ends, None, given[k], out.numpy(),
            num_threads=torch.get_num_threads(),
        )  # fmt: skip
        return out

    return run


def int8_rows(rows_ND: Tensor) -> Tensor:
    """Return fbgemm's int8 rows, uint8 ``[N, D + 4]``: fp16 scale, fp16 bias, D values."""
    low, high = rows_ND.amin(dim=1), rows_ND.amax(dim=1)
    bias = low.half()
    scale = ((high - bias.float()) / 255).clamp(min=1e-7).half()
    values = ((rows_ND - bias.float()[:, None]) / scale.float()[:, None]).round().clamp(0, 255)
    head = torch.stack([scale, bias], dim=1).view(torch.uint8)
    return torch.cat([head, values.to(torch.uint8)], dim=1)


def in_code_order(ids: Tensor, offsets: Tensor, code: npt.NDArray[Any]) -> Tensor:
    """Return the ids of each bag in order of cluster code."""
    bag = np.repeat(np.arange(offsets.numel() - 1), offsets.diff().numpy())
    order = np.lexsort((code[ids.numpy()], bag))
    return ids[torch.from_numpy(order)]


def _fused(table: TableRows, batches: list[tuple[Tensor, Tensor]], mixes: bool = MIXES) -> Entrant:
    """Look raw ids up with our kernel, without the module around it."""
    features = FeatureRows([table], [0], [False], mixes)
    width = table.dim

    def run(k: int) -> Tensor:
        ids, offsets = batches[k]
        out = torch.empty(offsets.numel() - 1, width)
        look_up_features(
            features, ids.numpy(), offsets.numpy(), None, out.shape[0], out.numpy(),
            policy=RAISE, num_threads=torch.get_num_threads(),
        )  # fmt: skip
        return out

    return run


def _table_batch(weight: Tensor, bags: GroupedBags) -> Entrant:
    """Return fbgemm's table batch for training on the CPU, float32."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(weight.shape[0], weight.shape[1], EmbeddingLocation.HOST, ComputeDevice.CPU)]
    )
    tables.split_embedding_weights()[0].copy_(weight)
    return lambda k: tables(*bags.batches[k])


def _inference_batch(weight: Tensor, bags: GroupedBags) -> Entrant:
    """Return fbgemm's table batch for inference on the CPU, float32."""
    from fbgemm_gpu.split_embedding_configs import SparseType

    num_rows, dim = weight.shape
    tables = _host_batch(num_rows, dim, SparseType.FP32)
    held = tables.split_embedding_weights(split_scale_shifts=False)[0][0]
    held.view(torch.float32).copy_(weight)
    ints = [(ids.int(), offsets.int()) for ids, offsets in bags.batches]
    return lambda k: tables(*ints[k])


def _host_batch(num_rows: int, dim: int, kind: Any) -> Any:
    """Return a table batch for inference of one table in host memory, its rows not filled in."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    tables = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("t", num_rows, dim, kind, EmbeddingLocation.HOST)],
        device="cpu",
        output_dtype=SparseType.FP32,
    )
    tables.initialize_weights()
    return tables
