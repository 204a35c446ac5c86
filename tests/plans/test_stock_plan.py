"""Sharding plans of TorchRec, looked at in the same form as ours."""

import json

import pytest
import torch

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.stock_plan import (
    memory_of,
    read_stock_plan,
    stock_document,
    summarise_stock,
)
from grace_torchrec.plans.table_spec import table_specs

torchrec = pytest.importorskip("torchrec")


def collection():
    """A model on the meta device with a large and a small table."""
    configs = [
        torchrec.EmbeddingBagConfig(
            name=name, embedding_dim=16, num_embeddings=rows, feature_names=[name[2:]]
        )
        for name, rows in (("t_item", 1000), ("t_user", 40))
    ]
    model = torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return torch.nn.ModuleDict({"sparse": model})


@pytest.fixture(scope="module")
def planned():
    """(plan of TorchRec's own planner for one GPU whose HBM holds one table, model)."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints

    model = collection()
    constraints = {
        "t_item": ParameterConstraints(
            compute_kernels=["fused_uvm"], sharding_types=["table_wise"]
        ),
        "t_user": ParameterConstraints(compute_kernels=["fused"], sharding_types=["table_wise"]),
    }
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=1, compute_device="cuda"), constraints=constraints
    )
    return planner.plan(model, [EmbeddingBagCollectionSharder()]), model


def test_the_document_is_what_torchrec_itself_serialises(planned):
    plan, _ = planned
    assert stock_document(plan) == json.loads(json.dumps(plan._serialize()))


def test_tables_stand_in_the_memory_that_their_kernel_reads(planned):
    plan, model = planned
    summary = summarise_stock(stock_document(plan), "planner", table_specs(model))
    item, user = (
        {part.tier: part for part in table.tiers}
        for table in sorted(summary.tables, key=lambda table: table.table)
    )
    assert (item["host"].rows, item["host"].bytes, item["hbm"].rows) == (1000, 1000 * 64, 0)
    assert (user["hbm"].rows, user["hbm"].bytes, user["host"].rows) == (40, 40 * 64, 0)
    assert {table.lookup for table in summary.tables} == {"fused_uvm", "fused"}
    assert summary.time_s is None


def test_a_file_says_what_the_object_says(planned, tmp_path):
    document = stock_document(planned[0])
    (tmp_path / "plan.json").write_text(json.dumps(document))
    read = read_stock_plan(tmp_path / "plan.json").document()
    assert read["tables"] == summarise_stock(document, "x").document()["tables"]


def sharded(sharding, kernel, shards):
    entry = {"sharding_type": sharding, "compute_kernel": kernel, "ranks": [0, 1], "shards": shards}
    return {"plan": {"m": {"t": entry}}}


def shard(row, column, rows, columns, rank=0):
    return {
        "shard_offsets": [row, column],
        "shard_sizes": [rows, columns],
        "placement": f"rank:{rank}/cuda:{rank}",
    }


def test_rows_of_a_row_wise_table_add_up_and_those_of_a_column_wise_table_count_once():
    by_row = summarise_stock(
        sharded("row_wise", "fused", [shard(0, 0, 60, 8), shard(60, 0, 40, 8, 1)]), "x"
    )
    by_column = summarise_stock(
        sharded("column_wise", "fused", [shard(0, 0, 100, 4), shard(0, 4, 100, 4, 1)]), "x"
    )
    for summary in (by_row, by_column):
        (part,) = summary.tables[0].tiers
        assert (part.rows, part.bytes) == (100, 100 * 8 * 4)
        assert (summary.tables[0].num_rows, summary.tables[0].row_bytes) == (100, 32)


def test_a_table_without_shards_is_on_every_rank_and_of_unknown_size_without_its_model():
    entry = {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1]}
    (table,) = summarise_stock({"plan": {"": {"t": entry}}}, "x").tables
    assert (table.table, table.num_rows, table.tiers[0].bytes) == ("t", None, None)
    assert "every rank" in table.reason


@pytest.mark.parametrize(
    ("kernel", "device", "memory"),
    [
        ("dense", "rank:0/cuda:0", "hbm"),
        ("quant", "rank:0/cuda:0", "hbm"),
        ("quant_uvm", "rank:0/cuda:0", "host"),
        ("fused_uvm_caching", "rank:1/cuda:1", "host"),
        ("fused", "rank:0/cpu", "host"),
        ("key_value", "rank:0/cuda:0", "ssd"),
        ("dram_virtual_table", "rank:0/cuda:0", "host"),
        ("ssd_virtual_table", "rank:0/cuda:0", "ssd"),
    ],
)
def test_every_kernel_has_its_memory(kernel, device, memory):
    assert memory_of(kernel, device) == memory


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no JSON object"),
        ('{"plan": {}, "plan": {}}', "twice"),
        ('{"plan": []}', "no sharding plan"),
        ('{"schema": 1, "tables": []}', "name the folder"),
        ('{"plan": {"m": 1}}', "module 'm'"),
        ('{"plan": {"m": {"t": []}}}', "table m.t"),
        ('{"plan": {"m": {"t": {"compute_kernel": "fused"}}}}', "sharding_type is missing"),
        (json.dumps(sharded("row_wise", "fused", [1])), "a shard is no JSON object"),
        (json.dumps(sharded("row_wise", "fused", [shard(0, 0, -1, 4)])), "shard_sizes"),
        (json.dumps(sharded("row_wise", "fused", [shard(0, 0, 2**60, 4)])), "shard_sizes"),
        (json.dumps(sharded("row_wise", "fused", [shard(0, 0, True, 4)])), "shard_sizes"),
        (json.dumps(sharded("row_wise", "fused", 3)), "shards"),
    ],
)
def test_what_is_no_sharding_plan_is_refused_on_one_line(tmp_path, text, words):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(GraceError, match=words) as error:
        read_stock_plan(tmp_path / "plan.json")
    assert "\n" not in str(error.value)
