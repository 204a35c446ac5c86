"""The swap guide works unchanged on models it was not written for.

Each has its own table names, dimensions, poolings and features; the blocks of the page are given
``model`` and ``batches`` and nothing else.
"""

from pathlib import Path

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.models.deepfm import SimpleDeepFMNN

from grace_torchrec.traces.synthetic import generate

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "swap_guide.md"
BAGS, BATCH = 480, 60


def collection(*tables, **options):
    """A stock collection; a table is (name, rows, dim, features, pooling)."""
    configs = [
        EmbeddingBagConfig(
            name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features, pooling=pooling
        )
        for name, rows, dim, features, pooling in tables
    ]  # fmt: skip
    return EmbeddingBagCollection(tables=configs, **options)


def keyed(features, first):
    """One batch: {feature: trace} -> KeyedJaggedTensor of the bags from ``first`` on."""
    ids, lengths = [], []
    for trace in features.values():
        bags = torch.from_numpy(trace.offsets_B1[first : first + BATCH + 1])
        ids.append(torch.from_numpy(trace.ids_L[bags[0] : bags[-1]]).long())
        lengths.append(bags.diff())
    return KeyedJaggedTensor(list(features), torch.cat(ids), lengths=torch.cat(lengths))


def deep_fm():
    """TorchRec's DeepFM: one table that two features read, and one of the context."""
    tables = collection(
        ("watched_or_liked", 400, 64, ["watched", "liked"], PoolingType.SUM),
        ("country", 50, 64, ["country"], PoolingType.SUM),
    )
    features = {
        "liked": generate(400, BAGS, seed=2, pooling=(10, 40)),
        "country": generate(50, BAGS, seed=3, pooling=(1, 1)),
        "watched": generate(400, BAGS, seed=4),
    }
    model = SimpleDeepFMNN(13, tables, hidden_layer_size=16, deep_fm_dimension=8)
    return model, [(torch.rand(BATCH, 13), keyed(features, n)) for n in range(0, BAGS, BATCH)]


class TwoTower(nn.Module):
    """Two collections of other dimensions, one of MEAN; the short baskets gain nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.user = collection(("history", 500, 64, ["clicks"], PoolingType.MEAN))
        self.shop = collection(("basket", 300, 16, ["basket"], PoolingType.SUM))
        self.up = nn.Linear(16, 64)

    def forward(self, bags: KeyedJaggedTensor) -> torch.Tensor:
        """Return one score for each request."""
        return (self.user(bags).values() * self.up(self.shop(bags).values())).sum(1)


def two_tower():
    """A model whose only argument is the bags."""
    features = {
        "basket": generate(300, BAGS, seed=5, pooling=(5, 30), repeats=0.1),
        "clicks": generate(500, BAGS, seed=6),
    }
    return TwoTower(), [(keyed(features, n),) for n in range(0, BAGS, BATCH)]


def sparse_clicks():
    """A model that sums cannot help: the guide says so and still works to its end."""
    tables = collection(("ad", 1000, 64, ["ad"], PoolingType.SUM))
    features = {"ad": generate(1000, BAGS, seed=7, pooling=(1, 2), global_share=1.0)}
    return nn.Sequential(tables, Values()), [(keyed(features, n),) for n in range(0, BAGS, BATCH)]


class Values(nn.Module):
    """Takes the values out of a KeyedTensor."""

    def forward(self, pooled):
        return pooled.values()


@pytest.mark.parametrize(
    ("make", "swapped_tables"),
    [(deep_fm, {"watched_or_liked"}), (two_tower, {"history"}), (sparse_clicks, set())],
)
def test_the_guide_works_on_a_model_it_has_never_seen(make, swapped_tables, blocks, run, folder):
    torch.manual_seed(0)
    model, batches = make()
    names = {"__name__": "guide", "model": model, "batches": batches}
    assert run(blocks(GUIDE), names) == 7
    used = {table for tables in names["swapped"].modules.values() for table in tables}
    assert used == swapped_tables
    assert (folder / "served" / "served.json").is_file()


def test_the_guide_asks_for_nothing_but_model_and_batches(blocks):
    first = blocks(GUIDE)[0]
    assert first.kind == "setup"
    assert first.text.startswith('if "model" not in globals():')
    assert sum(block.kind == "setup" for block in blocks(GUIDE)) == 1
