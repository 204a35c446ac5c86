"""What is run on every rank; each case returns plain values for a test to judge.

A case takes (rank, world size, folder); all ranks run all cases together and in order.
"""

import copy

import swapped_models as models
import torch
import torch.distributed as dist
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

from grace_torchrec.errors import GraceError, NotSupported, StaleSums
from grace_torchrec.modules import sharded_rows
from grace_torchrec.modules.rewrite_ahead import rewrite
from grace_torchrec.modules.swap import rebuild_sums_, restore_, Swapped
from grace_torchrec.modules.verify import verify

SHARDER = EmbeddingBagCollectionSharder()
WAYS = {
    "table_wise": lambda world, number: table_wise(rank=number % world),
    "row_wise": lambda world, number: row_wise(),
    "column_wise": lambda world, number: column_wise(ranks=list(range(world))),
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
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan), sharders=[SHARDER]
    )


def answer(model, bags):
    with torch.no_grad():
        return model(bags)[1]


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
    return {
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
