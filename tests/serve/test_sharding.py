"""Kernels follow the plan's memories; shards answer like whole tables.

Without CUDA the kernels' memories are seen in two ways: built on the CPU, where every one of them is
host memory, and built as for CUDA with the table batch itself made on the meta device (recorded).
"""

from dataclasses import replace

import pytest
import torch
from torchrec.distributed import batched_embedding_kernel, quant_embedding_kernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import BoundsCheckMode, ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.sharding import Spread, devices_told, shard_collection
from grace_torchrec.serve.table_pieces import batches_of

TIERS = {"t_hot": "hbm", "t_cold": "host"}
LOCATION = {"uvm": "MANAGED", "uvm_caching": "MANAGED_CACHING"}


@pytest.fixture
def recorded(monkeypatch):
    """Make table batches for CUDA on the meta device; return those made."""
    made = []

    def recording(kind):
        class Recorded(kind):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **{**kwargs, "device": torch.device("meta")})
                made.append(self)

        return Recorded

    class Card:
        total_memory = 80 << 30

    for room, name in (
        (quant_embedding_kernel, "IntNBitTableBatchedEmbeddingBagsCodegen"),
        (batched_embedding_kernel, "SplitTableBatchedEmbeddingBagsCodegen"),
    ):
        monkeypatch.setattr(room, name, recording(getattr(room, name)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card())
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    return made


def tables(data_type=DataType.INT8):
    return [
        EmbeddingBagConfig(
            name=name, num_embeddings=64, embedding_dim=8, feature_names=[f"f_{name}"],
            data_type=data_type,
        )
        for name in TIERS
    ]  # fmt: skip


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("host_memory", LOCATION)
def test_quant_kernels_of_both_memories_recorded_for_cuda(host_memory, mapped, recorded):
    sharding = Spread(device="cuda", host_memory=host_memory, uvm_host_mapped=mapped)
    meta = torch.device("meta")
    inner = QuantEmbeddingBagCollection(tables(), False, meta, output_dtype=torch.float32)
    with devices_told():
        sharded = shard_collection(inner, TIERS, sharding)
    (batch,) = recorded
    assert {spec[0]: spec[4].name for spec in batch.embedding_specs} == {
        "t_hot": "DEVICE",
        "t_cold": LOCATION[host_memory],
    }
    assert batch.uvm_host_mapped is mapped
    assert batch.bounds_check_mode_int == BoundsCheckMode.NONE.value
    assert batch.gather_uvm_cache_stats == (host_memory == "uvm_caching")
    assert batch.cache_load_factor == sharding.cache_load_factor
    assert batches_of(sharded) == [batch]
    caches = getattr(batch, "mutable_resources", ())  # what the race check orders lookups by
    assert caches == (("cache:t_hot",) if host_memory == "uvm_caching" else ())


@pytest.fixture
def gloo(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield ShardingEnv.from_process_group(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()


def sharded_for_training(sharding, env, device):
    """Shard a float collection with the fused kernels of a plan's memories."""
    collection = EmbeddingBagCollection(tables=tables(DataType.FP32), device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"learning_rate": 0.1, "uvm_host_mapped": sharding.uvm_host_mapped}
    )
    chosen = {
        name: table_wise(0, device, sharding.kernel(tier, "fused")) for name, tier in TIERS.items()
    }
    plan = construct_module_sharding_plan(
        collection, chosen, sharder=sharder, local_size=1, world_size=1, device_type=device
    )
    assert {plan[name].compute_kernel for name in TIERS} == {
        "fused", f"fused_{sharding.host_memory}"
    }  # fmt: skip
    return sharder.shard(collection, plan, env, torch.device(device))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("host_memory", LOCATION)
def test_fused_kernels_of_both_memories_recorded_for_cuda(host_memory, mapped, recorded, gloo):
    sharding = Spread(device="cuda", host_memory=host_memory, uvm_host_mapped=mapped)
    with pytest.raises(ValueError, match="meta"):  # torchrec goes on to use the memory itself
        sharded_for_training(sharding, gloo, "cuda")
    (batch,) = recorded
    assert [spec[2].name for spec in batch.embedding_specs] == ["DEVICE", LOCATION[host_memory]]
    assert batch.uvm_host_mapped is mapped


@pytest.mark.parametrize("host_memory", LOCATION)
def test_fused_kernels_are_built_on_the_cpu_as_host_memory(host_memory, gloo):
    sharded = sharded_for_training(Spread(host_memory=host_memory), gloo, "cpu")
    (lookup,) = sharded._lookups
    batches = {kernel.emb_module for kernel in lookup._emb_modules}
    assert {spec[2].name for batch in batches for spec in batch.embedding_specs} == {"HOST"}


@pytest.mark.parametrize("host_memory", LOCATION)
@pytest.mark.parametrize("row_dtype", ["table", "fp16", "int8", "int4"])
def test_shards_answer_like_whole_tables(row_dtype, host_memory, model_of, served_of, batch):
    model = model_of(whole=False)
    whole = served_of(model, row_dtype=row_dtype)
    row_wise = ("t_item", "t_seen") if row_dtype in ("int8", "int4") else ()
    for world_size in (1, 2, 3):
        sharding = Spread(world_size=world_size, row_wise=row_wise, host_memory=host_memory)
        sharded = served_of(model, row_dtype=row_dtype, sharding=sharding)
        torch.testing.assert_close(sharded(*batch), whole(*batch))


def test_shards_of_rows_hold_each_row_once(model_of, served_of):
    sharding = Spread(world_size=3, row_wise=("t_item",))
    served = served_of(model_of(), row_dtype="int8", sharding=sharding)
    pieces = served.collections["sparse"].pieces()["t_item"]
    held = [row for p in pieces for row in range(p.first_row, p.first_row + p.num_rows)]
    assert sorted(held) == list(range(20))
    assert len(pieces) == 3


def test_what_cannot_be_sharded_is_said_before_anything_is(model_of, served_of):
    with pytest.raises(NotSupported, match="'t_item': TorchRec shards fp16 rows by table only"):
        served_of(model_of(), row_dtype="fp16", sharding=Spread(row_wise=("t_item",)))
    with pytest.raises(GraceError, match="no table 't_itme'"):
        served_of(model_of(), row_dtype="int8", sharding=Spread(row_wise=("t_itme",)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"device": "tpu"},
        {"host_memory": "ssd"},
        {"cache_load_factor": 0.0},
        {"cache_load_factor": 1.5},
    ],
)
def test_options_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(GraceError, match=f"sharding: {next(iter(wrong))}"):
        Spread(**wrong)


def test_bad_ids_never_reach_a_table_batch(model_of, served_of):
    for options in ({}, {"sharding": Spread(world_size=2)}):
        served = served_of(model_of(), row_dtype="int8", **options)
        modes = {batch.bounds_check_mode_int for batch in batches_of(served.model)}
        assert modes == {BoundsCheckMode.NONE.value}


def test_another_kind_of_sharding_is_refused_at_the_door(model_of, served_of):
    with pytest.raises(GraceError, match=r"must be a grace_torchrec\.serve\.sharding\.Spread"):
        served_of(model_of(), sharding={"t_item": "row_wise"})


def test_every_memory_counts_where_a_device_is_the_emptiest():
    meta, sharding, held = torch.device("meta"), Spread(world_size=2), [0, 0]
    ranks = []
    for tier, number in (("hbm", 64), ("host", 32)):
        one = EmbeddingBagConfig(
            name=f"t_{tier}", num_embeddings=number, embedding_dim=8, feature_names=[f"f_{tier}"],
            data_type=DataType.INT8,
        )  # fmt: skip
        inner = QuantEmbeddingBagCollection([one], False, meta, output_dtype=torch.float32)
        with devices_told():
            shard_collection(inner, {one.name: tier}, sharding, held)
        ranks.append([size // 12 for size in held])  # rows of 8 values, a scale and a bias
    assert ranks == [[64, 0], [64, 32]]


@pytest.mark.parametrize(
    ("uvm", "host_memory", "mapped"),
    [("managed", "uvm", False), ("host_mapped", "uvm", True), ("cached", "uvm_caching", True)],
)
def test_what_is_not_said_is_as_the_plan_was_priced(
    uvm, host_memory, mapped, model_of, plan_for, served_of
):
    planned = Spread().as_planned(uvm)
    assert (planned.host_memory, planned.uvm_host_mapped) == (host_memory, mapped)
    assert planned.kernel("host") == f"quant_{host_memory}"
    said = Spread(host_memory="uvm", uvm_host_mapped=not mapped)
    assert said.as_planned(uvm) == said
    model = model_of()
    plan = plan_for(model)
    plan = replace(plan, memory=replace(plan.memory, uvm=uvm))
    served = served_of(model, plan, row_dtype="int8", sharding=Spread())
    built = [part for part in served.modules() if hasattr(part, "uvm_host_mapped")]
    assert built
    assert {part.uvm_host_mapped for part in built} == {mapped}
