"""The sharding planner: memories, traffic, quiet, and a way out of every dead end."""

import logging
import time
import warnings

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.planner import GraceShardingPlanner, NoShardingPlan, merged_constraints
from grace_sharding.shards import Shard, TableShards, rank_ms

SHARDERS = [EmbeddingBagCollectionSharder()]
ROW = 512  # bytes of a row of 128 float32
MB = 1_000_000


def machine(hbm_mb, host_mb, uvm="host_mapped"):
    return MemoryModel(
        "test", (Tier("hbm", hbm_mb * MB, 2e12), Tier("host", host_mb * MB, 25e9)), uvm=uvm
    )


def cpu(host_mb):
    return MemoryModel("test cpu", (Tier("host", host_mb * MB, 100e9),))


def skeleton(tables):
    """Return a model on the meta device: name -> (tier, megabytes, features)."""
    model, inside = nn.Module(), nn.Module()
    for tier in ("host", "hbm"):
        configs = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=128,
                num_embeddings=megabytes * MB // ROW,
                feature_names=[f"{name}_{feature}" for feature in range(features)],
            )
            for name, (where, megabytes, features) in tables.items()
            if where == tier
        ]
        if configs:
            device = torch.device("meta")
            setattr(inside, tier, EmbeddingBagCollection(tables=configs, device=device))
    model.ebc = inside
    return model


def tiers_of(tables):
    return {name: where for name, (where, _, _) in tables.items()}


def one(where, megabytes, features=1):
    return {"big": (where, megabytes, features)}


def only(**fields):
    return {"big": ParameterConstraints(**fields)}


TW, RW, CW, DP = (
    {"sharding_types": [kind]}
    for kind in ("table_wise", "row_wise", "column_wise", "data_parallel")
)
MANY = {f"t{k}": ("hbm", 30, 1) for k in range(8)}
MIXED = {"big": ("host", 400, 1), "hot": ("hbm", 60, 1), "small": ("hbm", 5, 1)}
# name -> (tables, memory of a rank and host, keywords of the planner)
DEAD_ENDS = {
    "table-larger-than-hbm": (one("hbm", 200), machine(100, 1000), {}),
    "table-larger-than-hbm-2": (one("hbm", 500), machine(100, 4000), {"world_size": 2}),
    "pinned-table-wise": (one("hbm", 200), machine(150, 1000), {"world_size": 2, "constraints": only(**TW)}),
    "pinned-column-wise": (one("hbm", 200), machine(150, 1000), {"world_size": 2, "constraints": only(**CW)}),
    "pinned-data-parallel": (one("hbm", 200), machine(150, 1000), {"world_size": 2, "constraints": only(**DP)}),
    "row-wise-too-large": (one("hbm", 900), machine(100, 8000), {"world_size": 4, "constraints": only(**RW)}),
    "wide-column-partition": (
        one("hbm", 200), machine(150, 1000),
        {"world_size": 2, "constraints": only(min_partition=128, **CW)},
    ),
    "kernel-of-another-family": (one("hbm", 50), machine(100, 1000), {"constraints": only(compute_kernels=["quant"])}),
    "kernel-unknown": (one("hbm", 50), machine(100, 1000), {"constraints": only(compute_kernels=["fastest"])}),
    "sharding-unknown": (one("hbm", 50), machine(100, 1000), {"constraints": only(sharding_types=["by_magic"])}),
    "data-parallel-on-uvm": (
        one("host", 50), machine(100, 1000), {"world_size": 2, "constraints": only(**DP)},
    ),
    "dense-table-wise": (
        one("hbm", 50), machine(100, 1000), {"constraints": only(compute_kernels=["dense"], **TW)},
    ),
    "device-group-cpu": (one("hbm", 50), machine(100, 1000), {"constraints": only(device_group="cpu")}),
    "device-group-cpu-of-one": (
        MIXED, machine(100, 1000), {"constraints": {"hot": ParameterConstraints(device_group="cpu")}},
    ),
    "pooling-factors-too-few": (one("hbm", 50, 3), machine(100, 1000), {"pooling_factors": {"big": [2.0]}}),
    "pooling-factors-too-many": (one("hbm", 50), machine(100, 1000), {"pooling_factors": {"big": [2.0, 1.0]}}),
    "num-poolings-do-not-match": (
        one("hbm", 50, 2), machine(100, 1000),
        {"constraints": only(pooling_factors=[1.0, 2.0], num_poolings=[1.0])},
    ),
    "batch-sizes-do-not-match": (
        one("hbm", 50, 2), machine(100, 1000),
        {"constraints": only(pooling_factors=[1.0, 2.0], batch_sizes=[5])},
    ),
    "host-table-pinned-to-one-rank": (
        one("host", 600), machine(100, 1000), {"world_size": 2, "constraints": only(**TW)},
    ),
    "host-table-larger-than-a-host": (one("host", 1500), machine(100, 1000), {"world_size": 2}),
    "host-tables-on-two-hosts": (
        {"big": ("host", 900, 1), "also": ("host", 900, 1), "more": ("host", 300, 1)}, machine(10, 1000),
        {"world_size": 4, "local_world_size": 2},
    ),
    "many-tables-crowd-hbm": (MANY, machine(100, 1000), {"world_size": 2}),
    "many-tables-crowd-hbm-1": (MANY, machine(100, 1000), {}),
    "many-tables-pinned-data-parallel": (
        MANY, machine(100, 1000),
        {"world_size": 4, "constraints": {name: ParameterConstraints(**DP) for name in MANY}},
    ),
    "all-of-it-too-large": (
        {f"t{k}": ("host", 500, 1) for k in range(4)}, machine(100, 1000), {"world_size": 2},
    ),
    "hbm-and-host-too-small": (MIXED, machine(10, 100), {"world_size": 8}),
    "reserved-by-codes": (one("hbm", 90), machine(100, 1000), {"reserved": {"hbm": 20 * MB}}),
    "reserved-on-the-host": (
        one("host", 900), machine(100, 1000), {"world_size": 2, "reserved": {"host": 100 * MB}},
    ),
    "no-hbm-at-all": (MIXED, machine(0, 1000), {}),
    "cpu-too-small": (one("host", 900), cpu(500), {}),
    "cpu-pinned-row-wise": (
        one("host", 300), cpu(1000), {"world_size": 2, "constraints": only(**RW)},
    ),
    "cached-kernel-has-no-hbm": (one("host", 900), machine(100, 2000, "cached"), {}),
    "three-ranks": (one("hbm", 400), machine(100, 4000), {"world_size": 3}),
    "guarded-kernel": (one("host", 300), machine(100, 1000), {"constraints": only(compute_kernels=["key_value"])}),
}  # fmt: skip


def planner_for(tables, memory, keywords):
    return GraceShardingPlanner(memory, **{"tiers": tiers_of(tables), **keywords})


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_a_dead_end_names_the_table_and_a_way_out_that_works(name) -> None:
    tables, memory, keywords = DEAD_ENDS[name]
    with pytest.raises(NoShardingPlan) as caught:
        planner_for(tables, memory, keywords).plan(skeleton(tables), SHARDERS)
    error = caught.value
    assert isinstance(error, PlannerError)  # who catches the stock planner's error catches this
    assert error.table in tables
    assert str(error).startswith(f"table {error.table!r}: ")
    assert "\n" not in str(error)
    assert error.need_bytes > error.have_bytes >= 0
    assert f"{tables[error.table][1] * MB // ROW * ROW:,}" in str(error) or "beside" in str(error)
    assert "; this works: " in str(error)

    remedy = dict(error.remedy)
    memory = remedy.pop("memory", memory)
    planner = planner_for(tables, memory, {**keywords, **remedy})
    plan = planner.plan(skeleton(tables), SHARDERS)
    assert {table for module in plan.plan.values() for table in module} == set(tables)
    assert {table.table for table in planner.tables} == set(tables)


def test_constraints_told_can_be_typed() -> None:
    tables, memory, keywords = DEAD_ENDS["pinned-table-wise"]
    with pytest.raises(NoShardingPlan) as caught:
        planner_for(tables, memory, keywords).plan(skeleton(tables), SHARDERS)
    typed = str(caught.value).partition("; this works: ")[2]
    given = eval(f"dict({typed})", {"ParameterConstraints": ParameterConstraints})
    planner = planner_for(tables, memory, {**keywords, **given})
    planner.plan(skeleton(tables), SHARDERS)
    assert planner.tables[0].sharding_type != "table_wise"


def test_what_no_change_mends_is_said_too() -> None:
    class Nothing(GraceShardingPlanner):
        def _solve(self, module, sharders):
            raise RuntimeError("nothing ever works")

    tables, memory = one("hbm", 5), machine(100, 1000)
    with pytest.raises(NoShardingPlan, match="no change of constraints, ranks or host memory"):
        Nothing(memory, tiers=tiers_of(tables)).plan(skeleton(tables), SHARDERS)


MODEL = {f"host{k}": ("host", 500, 1) for k in range(7)} | {
    f"hbm{k}": ("hbm", 5, 2) for k in range(19)
}


@pytest.mark.parametrize(("world_size", "local"), [(n, n) for n in range(1, 9)] + [(4, 2), (8, 4)])
def test_tables_stay_in_their_memory_at_every_world_size(world_size, local) -> None:
    memory = machine(300, 8000)
    planner = planner_for(MODEL, memory, {"world_size": world_size, "local_world_size": local})
    plan = planner.plan(skeleton(MODEL), SHARDERS)
    assert set(plan.plan) == {"ebc.host", "ebc.hbm"}
    hbm, host = [0] * world_size, [0] * world_size
    for table in planner.tables:
        assert table.tier == MODEL[table.table][0]
        assert table.kernel in ({"fused_uvm"} if table.tier == "host" else {"fused", "dense"})
        cells = sum(shard.rows * shard.columns for shard in table.shards)
        copies = world_size if table.sharding_type == "data_parallel" else 1
        assert cells == copies * (MODEL[table.table][1] * MB // ROW) * 128
        for shard in table.shards:
            hbm[shard.rank] += shard.hbm_bytes
            host[shard.rank] += shard.host_bytes
    assert max(hbm) <= 300 * MB
    for first in range(0, world_size, local):
        assert sum(host[first : first + local]) <= 8000 * MB


def test_cached_host_memory_takes_cached_kernels() -> None:
    planner = planner_for(one("host", 100), machine(100, 1000, "cached"), {})
    planner.plan(skeleton(one("host", 100)), SHARDERS)
    assert [table.kernel for table in planner.tables] == ["fused_uvm_caching"]


def test_a_cpu_has_one_memory() -> None:
    tables = one("host", 100)
    planner = planner_for(tables, cpu(1000), {"world_size": 2})
    planner.plan(skeleton(tables), SHARDERS)
    assert planner.tables[0].tier == "host"
    assert planner.tables[0].kernel in ("fused", "dense")


def test_a_table_without_a_tier_goes_where_the_batch_is_done_first() -> None:
    # The link is as fast as HBM: both memories are read at once, so two tables share them.
    memory = MemoryModel("even", (Tier("hbm", 10**9, 1e12), Tier("host", 10**9, 1e12)))
    tables = {"a": ("hbm", 50, 1), "b": ("hbm", 50, 1)}
    planner = GraceShardingPlanner(memory, pooling_factors={"a": [40.0], "b": [40.0]})
    planner.plan(skeleton(tables), SHARDERS)
    assert sorted(table.tier for table in planner.tables) == ["hbm", "host"]
    # At the rate of a real link both stay in HBM.
    planner = GraceShardingPlanner(machine(1000, 1000), pooling_factors={"a": [40.0], "b": [40.0]})
    planner.plan(skeleton(tables), SHARDERS)
    assert [table.tier for table in planner.tables] == ["hbm", "hbm"]


def test_measured_pooling_factors_price_the_tables() -> None:
    tables = {"a": ("hbm", 50, 1), "b": ("hbm", 50, 1)}
    planner = planner_for(
        tables, machine(1000, 1000), {"pooling_factors": {"a": [80.0], "b": [8.0]}}
    )
    planner.plan(skeleton(tables), SHARDERS)
    busy = {table.table: sum(s.busy_ms for s in table.shards) for table in planner.tables}
    assert 7 < busy["a"] / busy["b"] < 10
    assert planner.tables[0].pooling_factors == (80.0,)


def test_constraints_of_the_caller_go_before_tiers_and_measurements() -> None:
    given = {"a": ParameterConstraints(compute_kernels=["fused"], pooling_factors=[3.0])}
    merged = merged_constraints(machine(1, 1), {"a": "host", "b": "host"}, {"a": [9.0]}, given)
    assert merged["a"].compute_kernels == ["fused"]
    assert merged["a"].pooling_factors == [3.0]
    assert merged["b"].compute_kernels == ["fused_uvm", "quant_uvm"]
    assert given["a"].compute_kernels == ["fused"]


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"world_size": 0}, "world_size must be an integer >= 1"),
        ({"world_size": True}, "world_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"world_size": 4, "local_world_size": 3}, "4 ranks do not fill hosts of 3"),
    ],
)
def test_numbers_out_of_range_are_refused(keywords, told) -> None:
    with pytest.raises(ValueError, match=told):
        GraceShardingPlanner(machine(1, 1), **keywords)


def test_planning_says_nothing(caplog, capfd) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "torchrec")
    tables, memory, keywords = DEAD_ENDS["many-tables-crowd-hbm"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planner = planner_for(MODEL, machine(300, 8000), {"world_size": 2})
        planner.plan(skeleton(MODEL), SHARDERS)
        with pytest.raises(NoShardingPlan):
            planner_for(tables, memory, keywords).plan(skeleton(tables), SHARDERS)
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr().out == ""
    logging.getLogger("torchrec.distributed.planner").warning("afterwards it may speak again")
    assert "afterwards" in caplog.text


def test_shards_are_plain_values_that_outlive_json() -> None:
    planner = planner_for(MODEL, machine(300, 8000), {"world_size": 2})
    planner.plan(skeleton(MODEL), SHARDERS)
    for table in planner.tables:
        assert TableShards.from_json(table.to_json()) == table


def test_a_rank_takes_the_slower_memory_and_the_exchange() -> None:
    def table(tier, *shards):
        return TableShards("m", "t", "row_wise", "k", tier, (1.0,), shards)

    def shard(rank, busy, comms):
        return Shard(rank, 0, 0, 1, 1, 0, 0, busy, comms)

    tables = [
        table("hbm", shard(0, 1.0, 0.5), shard(1, 4.0, 0.0)),
        table("hbm", shard(0, 1.0, 0.5)),
        table("host", shard(0, 3.0, 0.0), shard(1, 1.0, 1.0)),
    ]
    assert rank_ms(tables, 2) == (4.0, 5.0)


@pytest.mark.soak
@pytest.mark.parametrize("world_size", range(1, 9))
def test_26_tables_take_less_than_two_seconds_of_this_process(world_size) -> None:
    memory, model = machine(300, 8000), skeleton(MODEL)
    before = time.process_time()  # of the processor: others may keep the machine busy
    planner_for(MODEL, memory, {"world_size": world_size}).plan(model, SHARDERS)
    assert time.process_time() - before < 2
