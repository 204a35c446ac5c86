"""Outputs are compared value by value, inside any containers."""

from types import SimpleNamespace

import pytest
import torch

from grace_torchrec.schedule.same_values import same_values

X = torch.arange(4.0)
NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"a": (X, [X + 1]), "b": "one"}, {"b": "one", "a": (X.clone(), [X + 1])}),
        (NAN, NAN.clone()),
        ([float("nan"), None, 3], (float("nan"), None, 3)),
        (torch.complex(NAN, NAN), torch.complex(NAN, NAN)),
        (X[:0], X[:0].clone()),
        (SimpleNamespace(a=1), SimpleNamespace(a=1)),
        (object(), object()),
    ],
)
def test_equal_values_are_the_same(wanted, found):
    assert same_values(wanted, found)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"a": X, "b": "one"}, {"a": X, "b": "two"}),
        ({"a": (X, [X + 1])}, {"a": (X, [X + 2])}),
        ({"a": X}, {"b": X}),
        (X, X[:3]),
        (X, X.double()),
        (X, X.view(2, 2)),
        (NAN, torch.tensor([float("nan"), 1.0])),
        (NAN, torch.tensor([1.0, 2.0])),
        ([X], [X, X]),
        ([X], X),
        (X, 1.0),
        (1.0, float("nan")),
        (None, X),
        (object(), 3),
    ],
)
def test_a_difference_of_values_or_structure_is_told(wanted, found):
    assert not same_values(wanted, found)
    assert not same_values(found, wanted)
