"""Outputs are compared tensor by tensor, inside any containers."""

import pytest
import torch

from grace_torchrec.serve.same_values import same_values


def test_every_tensor_counts_and_nothing_else():
    x = torch.arange(4.0)
    assert same_values({"a": (x, [x + 1]), "b": "one"}, {"a": (x, [x + 1]), "b": "two"})
    assert not same_values({"a": (x, [x + 1])}, {"a": (x, [x + 2])})
    assert not same_values(x, x[:3])
    with pytest.raises(ValueError, match="zip"):
        same_values([x], [x, x])
