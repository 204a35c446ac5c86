"""The bundled models: plain torch, traceable, over any collection that answers by name."""

import pytest
import torch
from torch import fx, nn

from grace_torchrec.errors import GraceError
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.models.dlrm_dense import Dlrm
from grace_torchrec.models.parts import TableBags, feature_names, random_features


@pytest.mark.parametrize("name", MODELS)
def test_a_model_scores_its_batches_between_zero_and_one(name):
    example = bundled(name, batch=5, batches=2)
    with torch.inference_mode():
        scores = [example.model(*batch) for batch in example.batches]
    assert all(s.shape == (5, 1) and bool(((s >= 0) & (s <= 1)).all()) for s in scores)
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_batches_follow_from_the_seed_alone(name):
    torch.manual_seed(77)
    first = bundled(name, batch=3, seed=4)
    torch.manual_seed(78)
    again = bundled(name, batch=3, seed=4)
    with torch.inference_mode():
        assert torch.equal(first.model(*first.batches[0]), again.model(*again.batches[0]))


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_computes_the_same(name):
    example = bundled(name, batch=4)
    traced = fx.symbolic_trace(example.model)
    with torch.inference_mode():
        assert torch.equal(traced(*example.batches[0]), example.model(*example.batches[0]))


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(GraceError, match="'dlrn': not one of dlrm, wide_deep, din, bst"):
        bundled("dlrn")


def test_dlrm_multiplies_every_pair_once():
    names = feature_names(3)
    model = Dlrm(TableBags(names, 10, 4), names, 4, bottom=(8,), top=(8,)).eval()
    assert model.pairs_P.numel() == 4 * 3 // 2
    assert model.top.layers[0].in_features == 6 + 4


def test_any_collection_that_answers_by_name_will_do():
    class Other(nn.Module):
        def forward(self, features):
            return {name: torch.ones(2, 4) * len(name) for name in features}

    names = feature_names(2)
    model = Dlrm(Other(), names, 4, bottom=(8,), top=(8,)).eval()
    features = random_features(names, 10, 2, 3, torch.Generator().manual_seed(0))
    assert model(torch.zeros(2, 13), features).shape == (2, 1)
