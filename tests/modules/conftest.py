"""Small collections, plans made by hand, and batches that several tests of the modules room share.

Each fixture is a function; together they go from tables to a swapped collection in three lines:

    stock = collection_of([table_of("t_item", features=("item",))])
    swapped = swap_of(stock, clusters=((1, 2), (3, 4, 5)), originals="host", num_hbm_sums=2)
    swapped(batch_of({"item": [[1, 2, 7], []]}))
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.modules.embedding_configs import DataType

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.plan import Plan, PlanOptions, Prediction, TablePlan
from grace_torchrec.plans.table_spec import TableSpec, table_specs
from grace_torchrec.sums.arrays import code_kind
from grace_torchrec.sums.clusters import cluster_sets
from grace_torchrec.sums.stored_sums import StoredSums

CLUSTERS = ((1, 2), (3, 4, 5))  # one sum and four sums: five stored rows
NUM_ROWS = 20
METHOD_OF = {"clusters": "grace", "subsets": "subsets", "sets": "set_merge"}


def sums_of(num_rows: int, clusters: Sequence[Sequence[int]], code: str) -> StoredSums:
    """Sums of every kind of code, so that bags of the items of clusters read some.

    Of the subsets of clusters a subset code keeps those that leave masks to split. Sets overlap
    where clusters cannot: they are all subsets, and the first items of two neighbours.
    """
    ends = np.cumsum([0, *map(len, clusters)])
    members = np.array([item for cluster in clusters for item in cluster], np.int64)
    if code == "clusters":
        return StoredSums.from_clusters(num_rows, ends, members)
    if code == "subsets":
        starts = np.cumsum([0, *(2 ** len(cluster) for cluster in clusters)])
        entries = [
            int(start) + mask
            for start, cluster in zip(starts, clusters, strict=False)
            for mask in range(2 ** len(cluster))
            if mask.bit_count() > 1 and mask % 4 == 3
        ]
        entries += [int(starts[n]) + 5 for n, cluster in enumerate(clusters) if len(cluster) == 3]
        return StoredSums.from_subsets(num_rows, ends, members, np.array(entries, np.int64))
    indptr, items = cluster_sets(ends, members)
    pairs = [item for one, other in itertools.pairwise(clusters) for item in (one[0], other[0])]
    more = indptr[-1] + 2 * np.arange(1, len(pairs) // 2 + 1)
    all_items = np.concatenate([items, np.array(pairs, np.int64)])
    return StoredSums.from_sets(num_rows, np.append(indptr, more), all_items)


@pytest.fixture(scope="session")
def table_of() -> Callable[..., EmbeddingBagConfig]:
    """Return a function that makes the config of one table of 20 rows of 4 values."""

    def make(
        name: str = "t_item",
        *,
        features: Sequence[str] = ("item",),
        num_rows: int = NUM_ROWS,
        dim: int = 4,
        pooling: str = "sum",
        dtype: str = "fp32",
    ) -> EmbeddingBagConfig:
        return EmbeddingBagConfig(
            name=name,
            num_embeddings=num_rows,
            embedding_dim=dim,
            feature_names=list(features),
            pooling=PoolingType[pooling.upper()],
            data_type=DataType[dtype.upper()],
        )

    return make


@pytest.fixture(scope="session")
def collection_of() -> Callable[..., EmbeddingBagCollection]:
    """Return a function that makes a stock collection in eval mode.

    ``whole`` gives integer rows in -8 .. 8: sums of them are exact in every order, so results can
    be compared bit by bit.
    """

    def make(
        tables: Sequence[EmbeddingBagConfig],
        *,
        is_weighted: bool = False,
        whole: bool = True,
        seed: int = 0,
    ) -> EmbeddingBagCollection:
        collection = EmbeddingBagCollection(tables=list(tables), is_weighted=is_weighted).eval()
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for bag in collection.embedding_bags.values():
                shape = bag.weight.shape
                rows = (
                    torch.randint(-8, 9, shape, generator=random)
                    if whole
                    else torch.randn(shape, generator=random)
                )
                bag.weight.copy_(rows)
        return collection

    return make


@pytest.fixture(scope="session")
def table_plan() -> Callable[..., TablePlan]:
    """Return a function from a spec and a layout to the plan of one table.

    ``clusters=None`` stores nothing and leaves the table stock; ``clusters=()`` stores no sums
    (hot rows alone may still gain). ``num_hbm_sums`` splits the sums over the memories, as a number
    or, where it is a float, as a share. ``code`` is the kind of the code; ``sums`` are given ones,
    instead of those of ``clusters``.
    """

    def make(
        spec: TableSpec,
        *,
        clusters: Sequence[Sequence[int]] | None = CLUSTERS,
        originals: str = "host",
        num_hbm_sums: float = 0,
        hot_items: Sequence[int] = (),
        lookup: str = "fused",
        code: str = "clusters",
        sums: StoredSums | None = None,
    ) -> TablePlan:
        if sums is None and clusters is not None:
            sums = sums_of(spec.num_rows, clusters, code if clusters else "clusters")
        if sums is not None and isinstance(num_hbm_sums, float):
            num_hbm_sums = int(num_hbm_sums * sums.num_sums)
        placement = _placement(spec, sums, originals, num_hbm_sums, sorted(hot_items))
        extra = extra_of(sums, placement)
        return TablePlan(
            spec=spec,
            verdict="use" if sums else "leave stock",
            reason="made by hand for a test",
            method=METHOD_OF[code_kind(sums)] if sums and sums.num_sums else "none",
            sums=sums,
            placement=placement,
            lookup=lookup,
            lookup_reason="made by hand for a test",
            predicted=Prediction(
                ids=1,
                rows_read=1,
                cut=0.0,
                extra_rows=extra.rows,
                extra_bytes=extra.bytes,
                metadata_bytes=extra.metadata_bytes,
                kept_bytes=extra.kept_bytes,
                hbm_s=1.0,
                host_s=1.0,
                stock_hbm_s=1.0,
                stock_host_s=0.0,
            ),
        )

    return make


def _placement(
    spec: TableSpec,
    sums: StoredSums | None,
    originals: str,
    num_hbm_sums: int,
    hot_items: Sequence[int],
) -> Placement:
    num_sums = sums.num_sums if sums else 0
    in_hbm = num_hbm_sums + (spec.num_rows if originals == "hbm" else len(hot_items))
    in_host = num_sums - num_hbm_sums + (0 if originals == "hbm" else spec.num_rows)
    hot_map = spec.num_rows * 4 if hot_items else 0
    code = sums.metadata_bytes if sums else 0
    return Placement(
        originals=originals,
        num_hbm_sums=num_hbm_sums,
        hot_items=np.array(hot_items, np.int64),
        metadata="host",
        num_rows=spec.num_rows,
        num_sums=num_sums,
        row_bytes=spec.row_bytes,
        hbm=TierUse(in_hbm, in_hbm * spec.row_bytes + hot_map, 0),
        host=TierUse(in_host, in_host * spec.row_bytes + code, 0),
    )


@pytest.fixture(scope="session")
def plans_of(table_plan) -> Callable[..., dict[str, TablePlan]]:
    """Return a function from a stock collection to table name -> plan.

    ``layout`` goes to every table; ``by_table`` changes it for some.
    """

    def make(
        collection: EmbeddingBagCollection,
        by_table: Mapping[str, Mapping[str, Any]] | None = None,
        **layout: Any,
    ) -> dict[str, TablePlan]:
        return {
            spec.name: table_plan(spec, **{**layout, **(by_table or {}).get(spec.name, {})})
            for spec in table_specs(collection)
        }

    return make


@pytest.fixture(scope="session")
def swap_of(plans_of) -> Callable[..., GraceEmbeddingBagCollection]:
    """Return a function that swaps a stock collection; rows are shared, as ``accelerate_`` does."""

    def make(
        collection: EmbeddingBagCollection,
        by_table: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        bad_ids: str = "raise",
        strict: bool = False,
        **layout: Any,
    ) -> GraceEmbeddingBagCollection:
        plans = plans_of(collection, by_table, **layout)
        return GraceEmbeddingBagCollection(collection, plans, bad_ids=bad_ids, strict=strict)

    return make


@pytest.fixture(scope="session")
def model_plan(table_plan) -> Callable[..., Plan]:
    """Return a function from a model to a whole Plan for ``accelerate_``; arguments as plans_of."""

    def make(
        model: torch.nn.Module,
        by_table: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        options: PlanOptions | None = None,
        **layout: Any,
    ) -> Plan:
        memory = MemoryModel("test machine", (Tier("hbm", 10**9, 20e9), Tier("host", 10**9, 1e9)))
        tables = {
            spec.key: table_plan(spec, **{**layout, **(by_table or {}).get(spec.name, {})})
            for spec in table_specs(model)
        }
        return Plan(tables, memory, options or PlanOptions())

    return make


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., KeyedJaggedTensor]:
    """Return a function from feature -> bags (lists of ids) to a batch.

    ``weights`` has the same nesting; all features have the same number of bags.
    """

    def make(
        bags: Mapping[str, Sequence[Sequence[int]]],
        weights: Mapping[str, Sequence[Sequence[float]]] | None = None,
        *,
        ids: torch.dtype = torch.int64,
        lengths: torch.dtype = torch.int64,
    ) -> KeyedJaggedTensor:
        all_bags = [bag for feature in bags.values() for bag in feature]
        return KeyedJaggedTensor(
            keys=list(bags),
            values=torch.tensor([i for bag in all_bags for i in bag], dtype=ids),
            lengths=torch.tensor([len(bag) for bag in all_bags], dtype=lengths),
            weights=None
            if weights is None
            else torch.tensor(
                [w for feature in weights.values() for bag in feature for w in bag],
                dtype=torch.float32,
            ),
        )

    return make


@pytest.fixture
def three(table_of, collection_of):
    """A stock collection of three tables of different width, one of MEAN."""
    return collection_of(
        [
            table_of("t_a", features=("a",), dim=3),
            table_of("t_b", features=("b", "a"), dim=5, pooling="mean"),
            table_of("t_c", features=("c",), dim=2),
        ]
    )


@pytest.fixture
def swap_three(three, swap_of):
    """Return a function from lookups of its tables to it swapped, sums in both memories."""

    def make(*lookups, **options):
        ways = lookups or ("ahead", "ahead", "ahead")
        by_table = {f"t_{n}": {"lookup": way} for n, way in zip("abc", ways, strict=True)}
        return swap_of(three, by_table, **{"num_hbm_sums": 2, "hot_items": (7,), **options})

    return make


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., tuple[Any, ...]]:
    """Return a function that lets ops and direct lookup serve a batch, each one of its own.

    Where gradients could be asked for, the ops serve; under ``torch.no_grad`` the direct lookup. It
    returns the answer and the reads, or the error and its words.
    """

    def outcome(module, batch) -> tuple[Any, ...]:
        try:
            with module.counting_reads() as reads:
                got = module(batch)
        except Exception as error:
            return type(error), str(error)
        return got.keys(), got.length_per_key(), got.values().detach().clone(), reads.tolist()

    def check(module, make_batch: Callable[[], Any]) -> tuple[Any, ...]:
        with torch.enable_grad():
            by_ops = outcome(module, make_batch())
        with torch.no_grad():
            direct = outcome(module, make_batch())
        assert len(by_ops) == len(direct), (by_ops, direct)
        for one, other in zip(by_ops, direct, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        return direct

    return check
