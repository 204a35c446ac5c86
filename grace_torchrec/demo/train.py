"""A few training steps of the stock model, written to TensorBoard.

Flow: the demo trains before it swaps, so that the swap is shown on weights that moved.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from grace_torchrec.demo.batches import Batch

if TYPE_CHECKING:
    from torch import nn


def train(model: "nn.Module", batches: Iterable[Batch], log_dir: Path | None) -> list[float]:
    """Run one step for each batch and return the losses.

    Args:
        model: Takes ``Batch.inputs``, returns logits ``[B, 1]``; left in eval mode.
        batches: What to train on.
        log_dir: Where the event file goes (tags ``loss/total``, ``lr/g0``); None: nowhere.
    """
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    writer = None if log_dir is None else _event_writer(log_dir)
    losses: list[float] = []
    model.train()
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        logits = model(*batch.inputs).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, batch.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
        if writer is not None:
            writer.add_scalar("loss/total", losses[-1], step)
            writer.add_scalar("lr/g0", optimizer.param_groups[0]["lr"], step)
    if writer is not None:
        writer.close()
    model.eval()
    return losses


def _event_writer(log_dir: Path) -> Any:
    """Return a TensorBoard writer; None where TensorBoard (extra ``report``) is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(log_dir))
