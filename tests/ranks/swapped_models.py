"""Models, plans made by hand and batches for the tests that run on several ranks.

Imported by the ranks themselves, so there are no fixtures here.  Rows are whole numbers unless said
otherwise (then -0.5 .. 0.5): sums of whole numbers are exact in every order, so results can be
compared bit by bit.
"""

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.modules.embedding_configs import DataType

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse
from grace_torchrec.modules.swap import accelerate_
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.plan import Plan, PlanOptions, Prediction, TablePlan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.sums.stored_sums import StoredSums

NUM_ROWS, DIM = 24, 8
CLUSTERS = ((1, 2), (3, 4, 5), (6, 7, 8))
SETS = ((1, 2), (2, 3), (3, 4, 5), (6, 7, 8))  # they overlap, as clusters cannot
METHOD_OF = {"clusters": "grace", "subsets": "subsets", "sets": "set_merge"}
MEMORY = MemoryModel("test machine", (Tier("hbm", 10**9, 20e9), Tier("host", 10**9, 1e9)))
# Originals in either memory, sums split over both, hot rows, no sums at all, MEAN, two features.
LAYOUTS = {
    "t_item": {"originals": "host", "num_hbm_sums": 4, "hot_items": (9, 11)},
    "t_page": {"originals": "hbm", "num_hbm_sums": 7, "code": "subsets"},
    "t_user": {"originals": "host", "num_hbm_sums": 0, "code": None},
    "t_shop": {"originals": "host", "num_hbm_sums": 0},
}
FEATURES = {
    "t_item": ["item", "seen"],
    "t_page": ["page"],
    "t_user": ["user"],
    "t_shop": ["item"],  # read by two tables: output keys become item@t_item, item@t_shop
}
OUTPUT_KEYS = ["item@t_item", "seen", "page", "user", "item@t_shop"]


class Model(nn.Module):
    """A collection and a dense part, as train and eval pipelines call it."""

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.ebc = collection
        self.over = nn.Linear(2, 1)

    def forward(self, bags):
        pooled = self.ebc(bags)
        # by key: sharded stock collections return their features in an order of their own
        return self.over.weight.sum(), torch.cat([pooled[key] for key in OUTPUT_KEYS], 1)


def stock_model(seed=0, *, whole=True, weighted=False, dtype="fp32", device="cpu") -> Model:
    tables = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=NUM_ROWS,
            embedding_dim=DIM,
            feature_names=list(features),
            pooling=PoolingType.MEAN if name == "t_page" and not weighted else PoolingType.SUM,
            data_type=DataType[dtype.upper()],
        )
        for name, features in FEATURES.items()
    ]
    collection = EmbeddingBagCollection(
        tables=tables, is_weighted=weighted, device=torch.device(device)
    )
    random = torch.Generator().manual_seed(seed)
    if device != "meta":
        with torch.no_grad():
            for bag in collection.embedding_bags.values():
                shape = bag.weight.shape
                whole_rows = torch.randint(-8, 9, shape, generator=random).float()
                bag.weight.copy_(whole_rows if whole else torch.rand(shape, generator=random) - 0.5)
    torch.manual_seed(seed)
    return Model(collection).eval()


def swapped_model(*, lookup="fused", **stock) -> Model:
    """Return the model swapped, every table planned for the same lookup."""
    model = stock_model(**stock)
    specs = table_specs(model)
    layouts = {**LAYOUTS}
    if lookup == "ahead":  # a code that is rewritten ahead only
        layouts["t_shop"] = {**LAYOUTS["t_shop"], "code": "sets"}
    tables = {spec.key: table_plan(spec, lookup=lookup, **layouts[spec.name]) for spec in specs}
    accelerate_(model, Plan(tables, MEMORY, PlanOptions()))
    return model


def sums_of(num_rows, code) -> StoredSums:
    """Return 9 sums of clusters, 7 of subsets, or 4 of sets."""
    ends = np.cumsum([0, *map(len, CLUSTERS)])
    members = np.array([item for cluster in CLUSTERS for item in cluster], np.int64)
    if code == "clusters":
        return StoredSums.from_clusters(num_rows, ends, members)
    if code == "sets":
        indptr = np.cumsum([0, *map(len, SETS)])
        return StoredSums.from_sets(num_rows, indptr, np.concatenate(SETS).astype(np.int64))
    starts = np.cumsum([0, *(2 ** len(cluster) for cluster in CLUSTERS)])
    masks = [(3,), (3, 5, 7), (3, 5, 7)]
    entries = [start + mask for start, some in zip(starts, masks, strict=False) for mask in some]
    return StoredSums.from_subsets(num_rows, ends, members, np.array(entries, np.int64))


def table_plan(
    spec, *, originals, num_hbm_sums, hot_items=(), code="clusters", lookup="fused"
) -> TablePlan:
    """Return a plan made by hand; without a code the table stores nothing."""
    sums = sums_of(spec.num_rows, code) if code else StoredSums.none(spec.num_rows)
    in_hbm = num_hbm_sums + (spec.num_rows if originals == "hbm" else len(hot_items))
    in_host = spec.num_rows + sums.num_sums + len(hot_items) - in_hbm
    hot_map = spec.num_rows * 4 if hot_items else 0
    placement = Placement(
        originals=originals,
        num_hbm_sums=num_hbm_sums,
        hot_items=np.array(hot_items, np.int64),
        metadata="host",
        num_rows=spec.num_rows,
        num_sums=sums.num_sums,
        row_bytes=spec.row_bytes,
        hbm=TierUse(in_hbm, in_hbm * spec.row_bytes + hot_map, 0),
        host=TierUse(in_host, in_host * spec.row_bytes + sums.metadata_bytes, 0),
    )
    extra = extra_of(sums, placement)
    predicted = Prediction(
        ids=1, rows_read=1, cut=0.0, extra_rows=extra.rows, extra_bytes=extra.bytes,
        metadata_bytes=extra.metadata_bytes, kept_bytes=extra.kept_bytes,
        hbm_s=1.0, host_s=1.0, stock_hbm_s=1.0, stock_host_s=0.0,
    )  # fmt: skip
    return TablePlan(
        spec=spec,
        verdict="use",
        reason="made by hand for a test",
        method=METHOD_OF[code] if code else "none",
        sums=sums,
        placement=placement,
        lookup=lookup if sums.num_sums else "fused",
        lookup_reason="made by hand for a test",
        predicted=predicted,
    )


def batch(seed, *, bags=5, weighted=False) -> KeyedJaggedTensor:
    """Bags of 0 to 9 ids, most of them grouped ones; repeated ids and padding are among them."""
    random = np.random.default_rng(seed)
    keys = ["user", "item", "page", "seen"]
    lengths = random.integers(0, 10, len(keys) * bags)
    ids = np.where(
        random.random(lengths.sum()) < 0.7,
        random.integers(1, 12, lengths.sum()),
        random.integers(0, NUM_ROWS, lengths.sum()),
    )
    weights = None
    if weighted:
        weights = torch.from_numpy(random.integers(1, 3, ids.size).astype(np.float32))
    return KeyedJaggedTensor(
        keys=keys, values=torch.from_numpy(ids), lengths=torch.from_numpy(lengths), weights=weights
    )
