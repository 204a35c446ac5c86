"""What is run on every rank; each case returns plain values for a test to judge.

A case takes (rank, world size, folder); all ranks run all cases together and in order.
"""

import copy

import swapped_models as models
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.train_pipeline import EvalPipelineSparseDist, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan

import grace_torchrec as grace
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import GraceError, NotSupported, StaleSums
from grace_torchrec.modules import sharded_rows
from grace_torchrec.modules._torchrec import local_shards
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.rewrite_ahead import rewrite
from grace_torchrec.modules.swap import Swapped, rebuild_sums_, restore_
from grace_torchrec.modules.verify import verify
from grace_torchrec.plans.files import plan_fingerprint

SHARDER = EmbeddingBagCollectionSharder()
WAYS = {
    "table_wise": lambda world, number: table_wise(rank=number % world),
    "row_wise": lambda world, number: row_wise(),
    # 8 columns cannot be divided over three ranks: then the third holds none
    "column_wise": lambda world, number: column_wise(ranks=list(range(2 if world == 3 else world))),
    "data_parallel": lambda world, number: data_parallel(),
}


def shard(model, way, world_size):
    """Wrap a model; every collection in it is sharded the same way."""
    paths = {"ebc": model.ebc}
    if hasattr(model.ebc, "inner_collections"):
        paths = {f"ebc.{tier}": inner for tier, inner in model.ebc.inner_collections().items()}
    number = iter(range(100))
    plan = {
        path: construct_module_sharding_plan(
            collection,
            per_param_sharding={
                config.name: WAYS[way](world_size, next(number))
                for config in collection.embedding_bag_configs()
            },
            sharder=SHARDER,
            local_size=world_size,
            world_size=world_size,
            device_type="cpu",
        )
        for path, collection in paths.items()
    }
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan), sharders=[SHARDER]
    )
    return sharded.eval()


def planned(rank, world_size, folder):
    """A model without memory of its own, swapped and sharded as ``plan`` says for these ranks."""
    stock = models.stock_model(seed=3)
    profile = grace.profile([models.batch(number, bags=200) for number in range(2)], stock)
    memory = MemoryModel("test", (Tier("hbm", 700, 20e9), Tier("host", 10**9, 1e9)))
    options = grace.PlanOptions(methods=("grace",), size_limits=(3,))
    plan = grace.plan(stock, profile, memory, options, world_size=world_size, batch_size=5)
    model = models.stock_model(device="meta")
    grace.accelerate_(model, plan)
    model = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan.sharding_plan("cpu"), sharders=[SHARDER]
    ).eval()
    model.load_state_dict(stock.state_dict())
    rows = rebuild_sums_(model)
    held, wanted = {}, {}
    for table in plan.sharding.tables:
        inner = model.module.get_submodule(table.module)
        here = [shard for shard in table.shards if shard.rank == rank and shard.rows]
        wanted[table.table] = [[s.first_row, s.first_column, s.rows, s.columns] for s in here]
        held[table.table] = [
            [shard.first_row, shard.first_column, *shard.rows.shape]
            for shard in local_shards(inner)[table.table]
            if shard.rows.numel()
        ]
    return {
        "error": max(error_of(model, models.batch(rank + k), stock) for k in range(3)),
        "held": held,
        "wanted": wanted,
        "rows": rows,
        "plan": plan_fingerprint(plan),
        "memories": sorted({table.tier for table in plan.sharding.tables}),
    }


def answer(model, bags):
    with torch.no_grad():
        return model(bags)[1]


def in_line(ebc, bags):
    """Rewrite bags in line, as a sharded module does."""
    parts = bags_of(bags, ebc.input_names, ebc.is_weighted(), ebc.strict)
    return ebc.rewriter(*parts, list(range(len(ebc.dims))), torch.empty(0, dtype=torch.int8))


def raised(error, call, *args):
    """Return the message of the error that a call raises, empty if it raises none."""
    try:
        call(*args)
    except error as caught:
        return str(caught)
    return ""


def error_of(model, bags, stock):
    return float((answer(model, bags) - answer(stock, bags)).abs().max())


def _forward(way, rank, world_size, **kinds):
    """Shard, be stale, load, be stale, rebuild, answer."""
    stock = models.stock_model(seed=3, **kinds)
    model = shard(models.swapped_model(seed=0, **kinds), way, world_size)
    bags = models.batch(rank, weighted=kinds.get("weighted", False))
    before = raised(StaleSums, answer, model, bags)
    loaded = model.load_state_dict(copy.deepcopy(stock.state_dict()))
    after_load = raised(StaleSums, answer, model, bags)
    told = []
    rows = rebuild_sums_(model, told.append)
    unsharded = models.swapped_model(seed=3, **kinds)
    return {
        "error_to_swapped": error_of(model, bags, unsharded),
        "stale_before": before,
        "loaded": str(loaded),
        "stale_after_load": after_load,
        "rows": rows,
        "told": told,
        "error": error_of(model, bags, stock),
        "stale": model.module.ebc.stale_tables(),
        "keys": list(model.state_dict()),
        "stock_keys": list(stock.state_dict()),
        "output_keys": model.module.ebc(bags).keys(),
        "stock_output_keys": stock.ebc(bags).keys(),
        "distributed_keys": list(get_model_state_dict(model.module)),
        "reads": reads_of(model, bags),
    }


def reads_of(model, bags):
    ebc = model.module.ebc
    with ebc.counting_reads() as reads:
        answer(model, bags)
        return reads.sum(0).tolist()


def forward_table_wise(rank, world_size, folder):
    return _forward("table_wise", rank, world_size)


def forward_row_wise(rank, world_size, folder):
    return _forward("row_wise", rank, world_size, whole=False)


def forward_column_wise(rank, world_size, folder):
    return _forward("column_wise", rank, world_size, whole=False)


def forward_data_parallel(rank, world_size, folder):
    return _forward("data_parallel", rank, world_size)


def forward_weighted(rank, world_size, folder):
    return _forward("row_wise", rank, world_size, weighted=True)


def forward_half_rows(rank, world_size, folder):
    return _forward("table_wise", rank, world_size, dtype="fp16", whole=False)


def _sharded(way, world_size, seed=3, **kinds):
    """Return a sharded swapped model with the rows of the stock model of a seed, sums built."""
    model = shard(models.swapped_model(**kinds), way, world_size)
    kinds.pop("lookup", None)
    model.load_state_dict(models.stock_model(seed=seed, **kinds).state_dict())
    rebuild_sums_(model)
    return model


def rewritten_ahead(rank, world_size, folder):
    """Bags that come rewritten, and plain ones for the same model."""
    stock = models.stock_model(seed=3)
    result = {}
    for lookup in ("ahead", "fused", "stock"):
        model = _sharded("table_wise", world_size, lookup=lookup)
        bags = models.batch(rank)
        (ready,) = rewrite([bags], model, prefetch=0)
        result[lookup] = {
            "rewritten": error_of_batch(model, ready, stock, bags),
            "rewritten_reads": reads_of(model, ready),
            "plain": error_of_batch(model, bags, stock, bags),
            "plain_reads": reads_of(model, bags),
            "plain_batches": int(model.module.ebc.plain_batches),
        }
    model = _sharded("table_wise", world_size, lookup="ahead")
    (ready,) = rewrite([bags], model, prefetch=0)
    path = next(iter(ready.modules))
    ready.modules[path].rows[3] = 10_000
    result["bad_row"] = raised(ValueError, model.module.ebc.sharded_rewriter, ready)
    return result


def error_of_batch(model, given, stock, bags):
    return float((answer(model, given) - answer(stock, bags)).abs().max())


def no_bags(rank, world_size, folder):
    """A batch of no bags on every rank, and of empty bags."""
    model = _sharded("table_wise", world_size)
    none = models.batch(0, bags=0)
    (ready,) = rewrite([none], model, prefetch=0)
    return {"plain": list(answer(model, none).shape), "ready": list(answer(model, ready).shape)}


def in_small_chunks(rank, world_size, folder):
    """Rebuild and compare in chunks of one bag; a damaged row is found by the rank that has it."""
    kept = sharded_rows.CHUNK_BYTES
    sharded_rows.CHUNK_BYTES = 1
    try:
        told = []
        model = shard(models.swapped_model(), "row_wise", world_size)
        stock = models.stock_model(seed=3)
        model.load_state_dict(stock.state_dict())
        rebuild_sums_(model, told.append)
        fresh = model.module.ebc.stale_tables()
        error = error_of(model, models.batch(rank), stock)
        if rank == world_size - 1:
            key = "embedding_bags.t_page__hbm_rows.weight"
            with torch.no_grad():
                model.module.ebc.hbm.state_dict()[key].local_shards()[0].tensor[0, 0] += 1
        stale = model.module.ebc.stale_tables()
    finally:
        sharded_rows.CHUNK_BYTES = kept
    return {"told": told, "fresh": fresh, "stale": stale, "error": error}


def refused(rank, world_size, folder):
    """What a sharded model refuses, with its words."""
    model = _sharded("table_wise", world_size)
    swapped = Swapped({}, {}, {"ebc": None})
    grad = model(models.batch(rank))[1]
    return {
        "verify": raised(NotSupported, verify, model, [models.batch(0)]),
        "restore": raised(NotSupported, restore_, model.module, swapped),
        "training": raised(NotSupported, model.train(), models.batch(0)),
        "backward": raised(NotImplementedError, grad.sum().backward),
    }


def save_checkpoints(rank, world_size, folder):
    """Save a swapped and a stock model, both sharded, for other world sizes to load."""
    model = _sharded("row_wise", world_size, seed=7, whole=False)
    stock = shard(models.stock_model(whole=False), "table_wise", world_size)
    stock.load_state_dict(models.stock_model(seed=7, whole=False).state_dict())
    states = {"swapped": model.state_dict(), "stock": stock.state_dict()}
    for name, state in states.items():
        dcp.save({"model": state}, checkpoint_id=folder.parent / f"{name}-checkpoint")
    return {name: list(state) for name, state in states.items()}


def load_checkpoints(rank, world_size, folder):
    """Load both into swapped and stock models sharded another way."""
    want = models.stock_model(seed=7, whole=False)
    bags = models.batch(rank)
    result = {}
    for saved in ("swapped", "stock"):
        for into in ("swapped", "stock"):
            make = models.swapped_model if into == "swapped" else models.stock_model
            model = shard(make(whole=False), "table_wise", world_size)
            if into == "swapped":
                rebuild_sums_(model)
            state = {"model": model.state_dict()}
            dcp.load(state, checkpoint_id=folder.parent / f"{saved}-checkpoint")
            found = {"in_place": ""}
            if into == "swapped":
                # what dcp.load wrote in place is seen by each rank that holds some of it
                found["in_place"] = raised(StaleSums, model.module.ebc.sharded.require_fresh)
                found["holds"] = holds_rows(model.module.ebc)
            model.load_state_dict(state["model"])
            if into == "swapped":
                found["loaded"] = raised(StaleSums, answer, model, bags)
                rebuild_sums_(model)
            found["error"] = error_of(model, bags, want)
            result[f"{saved}-{into}"] = found
    return result


def holds_rows(ebc):
    """Tell whether this rank holds original rows of a table that has sums."""
    names = [config.name for config in ebc.embedding_bag_configs()]
    watched = {names[t] for _, t in ebc.stored_tables.values()}
    return any(
        shard.rows.numel()
        for inner in ebc.inner_collections().values()
        for name, shards in local_shards(inner).items()
        for shard in shards
        if name in watched
    )


def pipelines(rank, world_size, folder):
    """Train and eval pipelines (in eval mode) over a swapped model, with and without postprocs."""
    stock = models.stock_model(seed=3)
    result = {}
    for kind in (TrainPipelineSparseDist, EvalPipelineSparseDist):
        for lookup, ahead in (("fused", False), ("ahead", True)):
            model = _sharded("row_wise", world_size, lookup=lookup)
            optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
            pipeline = kind(model, optimizer, torch.device("cpu"), pipeline_postproc=True)
            bags = [models.batch(10 * rank + number) for number in range(4)]
            given = iter(list(rewrite(bags, model)) if ahead else bags)
            with torch.no_grad():
                got = [pipeline.progress(given) for _ in bags]
            errors = [
                float((one - answer(stock, each)).abs().max())
                for one, each in zip(got, bags, strict=True)
            ]
            held = raised(GraceError, rebuild_sums_, model)
            pipeline.detach()
            rebuild_sums_(model)
            result[f"{kind.__name__}-{lookup}"] = {
                "errors": errors,
                "pipelined": [type(module).__name__ for module in pipeline._pipelined_modules],
                "postprocs": [
                    type(postproc.postproc_module).__name__
                    for postproc in pipeline._pipelined_postprocs
                ],
                "held": held,
                "after": error_of(model, bags[0], stock),
            }
    return result


def pipeline_notices_a_load(rank, world_size, folder):
    """A load between two steps of a pipeline: the batch that was rewritten before it is refused."""
    model = _sharded("table_wise", world_size)
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(
        model, optimizer, torch.device("cpu"), pipeline_postproc=True
    )
    given = iter([models.batch(10 * rank + number) for number in range(4)])
    with torch.no_grad():
        pipeline.progress(given)
        model.load_state_dict(models.stock_model(seed=8).state_dict())
        return {"stale": raised(StaleSums, pipeline.progress, given)}
