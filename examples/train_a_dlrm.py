"""Train a TorchRec DLRM on one rank or several; leave a checkpoint, profiles, files of TensorBoard.

Run it: ``python examples/train_a_dlrm.py [--trace FILE]``; docs/jobs.md runs it on two ranks.
"""

import argparse
import os

import torch
import torch.distributed as dist
from history_dlrm import batches, build_model, folder_to_write, quiet
from torch.distributed import checkpoint
from torch.distributed.optim import _apply_optimizer_in_backward as optimize_in_backward
from torch.utils.tensorboard import SummaryWriter
from torchmetrics.functional.classification import binary_auroc
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.optimizers import in_backward_optimizer_filter

import grace_torchrec as grace
from grace_torchrec.interrupts import run
from grace_torchrec.traces.readers import read
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate


def parse() -> argparse.Namespace:
    """Flags: whose histories, how long to train, where results go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", help="file of users' histories; default: generated ones")
    parser.add_argument("--users", type=int, default=12_000, help="to generate, a fifth of items")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-o", "--out", help="folder to write; default: trained, a new one")
    return parser.parse_args()


def train(users: grace.Trace, epochs: int, out: str) -> None:
    """Train on this rank's share of the users, together with all other ranks."""
    torch.manual_seed(0)
    rank, ranks, cpu = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    share = users.take(torch.arange(rank, users.num_bags // ranks * ranks, ranks).numpy())
    given = [batch for epoch in range(epochs) for batch in batches(share, seed=epoch)]
    model = build_model(users.num_items)
    optimize_in_backward(RowWiseAdagrad, model.model.sparse_arch.parameters(), {"lr": 0.05})
    model = DistributedModelParallel(model, device=cpu)
    recorder = grace.TraceRecorder(model, max_bags=1 << 15, max_overhead=None).attach()
    dense = dict(in_backward_optimizer_filter(model.named_parameters())).values()
    pipeline = TrainPipelineSparseDist(model, torch.optim.Adam(dense, lr=0.002), cpu)
    writer, coming = SummaryWriter(f"{out}/tensorboard/rank-{rank}"), iter(given)
    for step in range(len(given)):
        loss, logits, labels = pipeline.progress(coming)
        writer.add_scalar("loss/total", loss, step)
        writer.add_scalar("metric/auroc", binary_auroc(logits, labels.long()), step)
        if step + 1 == len(given) // epochs:
            recorder.detach()  # of each user once: the plan is judged on users it was not made from
    writer.close()
    checkpoint.save(model.state_dict(), checkpoint_id=f"{out}/checkpoint")
    recorder.save(f"{out}/profile-{rank}")


def main() -> str:
    """Hold out a fifth of the users, train on the others; return the folder that was written."""
    args = parse()
    out = folder_to_write(args.out, "trained")
    quiet()
    users = split_bags(read(args.trace) if args.trace else generate(args.users // 5, args.users))
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
    else:
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # which torchrun says to TorchRec
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    grace.Profile.from_trace("t_item", users.test).save(f"{out}/held-out")  # all ranks have looked
    train(users.train, args.epochs, out)
    dist.destroy_process_group()
    return out


if __name__ == "__main__":
    run(main)
