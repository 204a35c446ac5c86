"""A copied batch has tensors of its own, in the same containers; what cannot be copied is shared."""

import threading
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.schedule.copied import cloned, tensors_in
from grace_torchrec.schedule.same_values import same_values

Pair = namedtuple("Pair", "left right")


@dataclass
class Context:
    """A batch with something that nobody can copy."""

    dense: Tensor
    lock: object = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """Attributes that are not in a dict."""

    dense: Tensor


class Stubborn:
    """Holds a tensor, and refuses every copy."""

    def __init__(self, dense):
        self.dense = dense

    def __reduce_ex__(self, protocol):
        raise ValueError("no copies")


def around(made):
    """Return a tensor in one of many containers, by its name."""
    x = torch.ones(2, 3)
    return {
        "dict": {"a": [x, (x, 3)]},
        "ordered": OrderedDict(a=x),
        "named": Pair(x, None),
        "object": SimpleNamespace(inner=SimpleNamespace(x=x), lock=threading.Lock()),
        "dataclass": Context(x, threading.Lock()),
        "slots": Frozen(x),
        "user dict": UserDict(a=x),
        "keyed": KeyedTensor(["a", "b"], [1, 2], x),
        "jagged": KeyedJaggedTensor(["a"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1])),
    }[made]


@pytest.mark.parametrize(
    "made",
    ["dict", "ordered", "named", "object", "dataclass", "slots", "user dict", "keyed", "jagged"],
)
def test_tensors_are_copied_wherever_they_lie(made):
    (value,) = given = (around(made),)
    (own,) = cloned(given)
    assert type(own) is type(value)
    theirs, ours = list(tensors_in(value)), list(tensors_in(own))
    assert len(theirs) == len(ours) > 0
    assert same_values(theirs, ours)
    assert not {t.data_ptr() for t in theirs} & {t.data_ptr() for t in ours}
    for tensor in ours:
        tensor.zero_()
    assert all(tensor.any() for tensor in theirs)


def test_what_cannot_be_copied_is_shared():
    lock, module, stubborn = threading.Lock(), nn.Linear(1, 1), Stubborn(torch.ones(2))
    given = (Context(torch.ones(2), lock), module, stubborn, {"lock": lock})
    context, *shared = cloned(given)
    assert context.lock is lock
    assert shared[:2] == [module, stubborn]
    assert shared[2]["lock"] is lock


def test_one_tensor_and_one_memory_stay_one():
    x = torch.zeros(4)
    same, again, part = cloned((x, Context(x), x[:2]))
    assert same is again.dense
    assert part.data_ptr() == same.data_ptr() != x.data_ptr()


def test_a_tensor_with_gradients_is_copied_where_it_lies():
    x = torch.ones(2, requires_grad=True) * 2
    (own,) = cloned((Context(x),))
    assert torch.equal(own.dense, x)
    assert own.dense.data_ptr() != x.data_ptr()
