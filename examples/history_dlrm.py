"""What the training examples share: a DLRM over users' histories, its batches, its checkpoint.

``history_dlrm:trained`` is MODEL for the command line and for jobs, once ``train_a_dlrm.py`` has run:
``grace-torchrec plan history_dlrm:trained --profile trained/profile-0 --memory a40``.
"""

import logging
import os
import warnings
from collections.abc import Iterator

import torch
from torch.distributed import checkpoint
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain

import grace_torchrec as grace
from grace_torchrec.demo.batches import history_batches


def quiet() -> None:
    """Leave out what TorchRec and torch say about calls and defaults of their own, not of ours."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")
    warnings.filterwarnings(
        "ignore", "torch.distributed is disabled"
    )  # one process is what is meant
    for talker in ("torchrec.distributed.planner", "torch.fx._symbolic_trace"):
        logging.getLogger(talker).setLevel(logging.ERROR)


def folder_to_write(named: str | None, default: str) -> str:
    """The folder for results; one that the caller did not name must not be there yet."""
    if named is None and os.path.exists(default):
        raise SystemExit(
            f"error: {default} is there already: give -o {default} to write there again"
        )
    return named or default


def build_model(num_items: int) -> DLRMTrain:
    """A DLRM whose two features read one table."""
    table = EmbeddingBagConfig(num_items, 64, "t_item", feature_names=["history", "candidate"])
    table.init_fn = lambda rows: torch.nn.init.normal_(rows, std=0.1)
    return DLRMTrain(DLRM(EmbeddingBagCollection(tables=[table]), 13, [64, 64], [64, 1]))


def batches(users: grace.Trace, seed: int = 0) -> Iterator[Batch]:
    """Yield a batch for each 256 users; another seed, other candidates.

    Label 1: the candidate was taken out of the user's history; label 0: it was drawn by popularity.
    """
    for batch in history_batches(users, 256, hold_out=True, seed=seed):
        yield Batch(batch.dense, batch.bags, batch.labels)


def load_model(folder: str) -> DLRM:
    """The model of a checkpoint, on one device, however many ranks have saved it."""
    quiet()
    name = "model.sparse_arch.embedding_bag_collection.embedding_bags.t_item.weight"
    saved = checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata
    model = build_model(saved[name].size[0])
    checkpoint.load(model.state_dict(), checkpoint_id=folder)
    return model.model.eval()


def trained() -> tuple[DLRM, list[tuple]]:
    """The model of ``trained/checkpoint``, and a batch of the users that were held out."""
    batch = next(batches(grace.Profile.load("trained/held-out").tables["t_item"].trace))
    return load_model("trained/checkpoint"), [(batch.dense_features, batch.sparse_features)]
