"""From training to serving: train a TorchRec DLRM, plan from what it read, serve its checkpoint.

Run it: ``python examples/train_then_serve.py [--trace FILE]``.  Prints how well the model ranks the
users that were held out, before and after, in fp32 and in int8.
"""

import copy

import torch
from history_dlrm import batches, load_model
from torch import nn
from torchmetrics.functional.classification import binary_auroc
from torchrec.datasets.utils import Batch
from torchrec.inference.modules import quantize_inference_model
from train_a_dlrm import main as train

import grace_torchrec as grace
from grace_torchrec.interrupts import run


def judge(model: nn.Module, test: list[Batch]) -> tuple[torch.Tensor, float]:
    """Return the logits of all batches, and how well they rank."""
    with torch.no_grad():
        logits = torch.cat([model(b.dense_features, b.sparse_features).flatten() for b in test])
    return logits, float(binary_auroc(logits, torch.cat([b.labels for b in test]).long()))


def main() -> None:
    """Train; plan, convert and serve; compare."""
    out = train()
    model = load_model(f"{out}/checkpoint")
    plan = grace.plan(model, grace.Profile.load(f"{out}/profile-0"), grace.MemoryModel.named("a40"))
    plan.save(f"{out}/plan")
    for table in plan.tables.values():
        print(f"{table.spec.name}: {table.verdict}, cut {table.predicted.cut:.1%}: {table.reason}")

    held_out = grace.Profile.load(f"{out}/held-out").tables["t_item"].trace
    test = list(batches(held_out))
    example = (test[0].dense_features, test[0].sparse_features)
    served = grace.convert(model, plan, example=example)
    served.save(f"{out}/served")
    served = grace.load_served(f"{out}/served", model, example=example)
    (before, auroc), (after, auroc_served) = judge(model, test), judge(served, test)
    print(f"fp32: AUROC {auroc:.6f} trained, {auroc_served:.6f} served")
    print(f"fp32: largest difference of logits {(before - after).abs().max():.1e}")

    stock = quantize_inference_model(copy.deepcopy(model))
    served = grace.convert(model, plan, example=example, row_dtype="int8")
    print(f"int8: AUROC {judge(stock, test)[1]:.6f} stock, {judge(served, test)[1]:.6f} served")


if __name__ == "__main__":
    run(main)
