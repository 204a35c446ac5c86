"""Swap the embedding lookups of a TorchRec DLRM, prove the swap, and undo it.

Run it: ``python examples/swap_a_dlrm.py``.  The bags are generated; replace ``bags`` by yours.
"""

import tempfile

import torch
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.interrupts import run
from grace_torchrec.traces.synthetic import generate

NUM_ITEMS, BATCH = 5_000, 256


def build_model() -> DLRM:
    """A DLRM with one table that users' histories read."""
    table = EmbeddingBagConfig(
        name="t_item", embedding_dim=64, num_embeddings=NUM_ITEMS, feature_names=["history"]
    )
    return DLRM(EmbeddingBagCollection(tables=[table]), 13, [64, 64], [64, 1]).eval()


def batches(trace: grace.Trace) -> list[tuple[torch.Tensor, KeyedJaggedTensor]]:
    """What the model takes: dense features, and the bags as they arrive."""
    result = []
    for first in range(0, trace.num_bags, BATCH):
        bags = trace.offsets_B1[first : first + BATCH + 1]
        ids = torch.from_numpy(trace.ids_L[bags[0] : bags[-1]])
        lengths = torch.from_numpy(bags).diff()
        kjt = KeyedJaggedTensor(keys=["history"], values=ids, lengths=lengths)
        result.append((torch.rand(lengths.numel(), 13), kjt))
    return result


def main() -> None:
    """Profile yesterday, plan, swap, and check on today."""
    torch.manual_seed(0)
    model = build_model()
    seen = batches(generate(NUM_ITEMS, 8_000, seed=1))
    yesterday, today = seen[:24], seen[24:]

    profile = grace.profile(yesterday, model)
    plan = grace.plan(model, profile, grace.MemoryModel.named("a40"))
    swapped = grace.accelerate_(model, plan)
    for path, tables in swapped.modules.items():
        print(f"swapped {path}: tables {', '.join(tables)}")
    for path, reason in swapped.refused.items():
        print(f"left alone {path}: {reason}")
    if not swapped.modules:
        return  # no table gains: the model is as it was

    proof = grace.verify(model, today)
    for table in proof.tables:
        print(
            f"{table.table}: {table.ids:,} ids, {table.rows_read:,} rows read, cut {table.cut:.1%}, "
            f"max error {table.max_abs_error:.1e}"
        )
    print("equal within rounding:", proof.equal)

    with tempfile.TemporaryDirectory() as folder:  # give it a place of yours
        plan.save(f"{folder}/plan-of-today")
        assert grace.Plan.load(f"{folder}/plan-of-today").tables.keys() == plan.tables.keys()
    grace.restore_(model, swapped)
    print("restored:", type(model.sparse_arch.embedding_bag_collection).__name__)


if __name__ == "__main__":
    run(main)
