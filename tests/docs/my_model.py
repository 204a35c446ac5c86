"""The model of the pages' reader: a TorchRec DLRM and batches of it."""

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from grace_torchrec.traces.synthetic import generate

NUM_ITEMS, DIM, BATCH = 300, 64, 64


def make():
    """Return (model, batches): histories with tastes in them, and one candidate each."""
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}", embedding_dim=DIM, num_embeddings=NUM_ITEMS, feature_names=[name]
        )
        for name in ("item", "candidate")
    ]
    model = DLRM(EmbeddingBagCollection(tables=tables), 13, [32, DIM], [32, 1]).eval()
    trace = generate(NUM_ITEMS, 8 * BATCH, seed=1)
    batches = []
    for first in range(0, trace.num_bags, BATCH):
        bags = torch.from_numpy(trace.offsets_B1[first : first + BATCH + 1])
        ids = torch.from_numpy(trace.ids_L[bags[0] : bags[-1]]).long()
        candidates = torch.randint(NUM_ITEMS, (BATCH,))
        keyed = KeyedJaggedTensor(
            keys=["item", "candidate"],
            values=torch.cat([ids, candidates]),
            lengths=torch.cat([bags.diff(), torch.ones(BATCH, dtype=torch.int64)]),
        )
        batches.append((torch.rand(BATCH, 13), keyed))
    return model, batches
