"""Plan a DLRM for two ranks, shard it with DistributedModelParallel, and compare the answers.

Run it: ``python examples/shard_a_dlrm.py``; it starts two processes that talk over gloo.
"""

import tempfile
import warnings

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM

import grace_torchrec as grace
from grace_torchrec.interrupts import end_silently, run, starting_processes
from grace_torchrec.traces.synthetic import generate

NUM_ITEMS, DIM, BATCH, RANKS = 5_000, 64, 256, 2


def build_model(device: str = "cpu") -> DLRM:
    """A DLRM with two tables."""
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(NUM_ITEMS, DIM, f"t_{name}", feature_names=[name])
        for name in ("history", "basket")
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device(device))
    return DLRM(collection, 13, [64, DIM], [64, 1]).eval()


def batch(trace: grace.Trace, number: int) -> KeyedJaggedTensor:
    """Two bags for each of a batch of requests, as they arrive."""
    first = 2 * BATCH * number
    bags = torch.from_numpy(trace.offsets_B1[first : first + 2 * BATCH + 1])
    ids = torch.from_numpy(trace.ids_L[bags[0] : bags[-1]])
    return KeyedJaggedTensor(keys=["history", "basket"], values=ids, lengths=bags.diff())


def serve(rank: int, folder: str) -> None:
    """What every rank does: swap, shard, load, rebuild, answer."""
    end_silently()  # at Ctrl-C
    warnings.simplefilter("ignore", FutureWarning)  # of calls that TorchRec itself makes
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    plan = grace.Plan.load(f"{folder}/plan")
    model = build_model(device="meta")
    grace.accelerate_(model, plan)
    sharding = plan.sharding_plan("cpu")
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=sharding).eval()
    trained = build_model()  # stands for a checkpoint
    model.load_state_dict(trained.state_dict())
    grace.rebuild_sums_(model)  # all ranks together; forward refuses before
    requests = torch.rand(BATCH, 13), batch(generate(NUM_ITEMS, 8_000, seed=1), 12 + rank)
    with torch.no_grad():
        error = (model(*requests) - trained(*requests)).abs().max()
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"equal to the unsharded model within 1e-6 on both ranks: {bool(error <= 1e-6)}")
    dist.destroy_process_group()


def main() -> None:
    """Profile and plan once, then start the ranks."""
    trace, model = generate(NUM_ITEMS, 8_000, seed=1), build_model()
    profile = grace.profile([batch(trace, number) for number in range(12)], model)
    memory = grace.MemoryModel.named("a40", hbm_bytes=1_500_000)  # of each rank
    plan = grace.plan(model, profile, memory, world_size=RANKS, batch_size=BATCH)
    print(*(f"{table.table}: {table.told}" for table in plan.sharding.tables), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        plan.save(f"{folder}/plan")
        with starting_processes():
            ranks = torch.multiprocessing.spawn(serve, (folder,), RANKS, join=False, daemon=True)
        while not ranks.join():
            pass


if __name__ == "__main__":
    run(main)
