"""A process that knows nothing but a plan folder and a state dict: it applies the plan and answers.

``python apply_plan.py PLAN STATE OUT``: outputs of the bags below are written to OUT.
"""

import sys

import numpy as np
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace

ROWS, DIM = 600, 64


def model_of() -> torch.nn.Module:
    """A model of two tables; its weights are drawn anew in every process."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}", embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name]
        )
        for name in ("item", "other")
    ]
    return torch.nn.Sequential(EmbeddingBagCollection(tables=tables)).eval()


def bags() -> KeyedJaggedTensor:
    """500 bags of each feature."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 30, 1000)
    ids = np.minimum(rng.zipf(1.3, int(lengths.sum())) - 1, ROWS - 1)
    return KeyedJaggedTensor(
        keys=["item", "other"], values=torch.from_numpy(ids), lengths=torch.from_numpy(lengths)
    )


@torch.no_grad()
def outputs(model: torch.nn.Module, plan: grace.Plan) -> torch.Tensor:
    """Apply a plan and answer the bags."""
    swapped = grace.accelerate_(model, plan)
    assert swapped.modules
    return model(bags()).values()


if __name__ == "__main__":
    plan_folder, state, out = sys.argv[1:]
    fresh = model_of()
    fresh.load_state_dict(torch.load(state, weights_only=True))
    torch.save(outputs(fresh, grace.Plan.load(plan_folder)), out)
