"""A request that went through bytes is the request; an answer is all its numbers in order."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torchrec import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.errors import NotSupported
from grace_torchrec.loadtest.encoding import Decoder, encode, flat_answer


def request_of(lengths: list[int], weighted: bool) -> tuple[object, ...]:
    rows, ids = len(lengths) // 2, torch.arange(sum(lengths), dtype=torch.int32)
    bags = KeyedJaggedTensor(
        ["a", "b"], ids, ids.float() if weighted else None, torch.tensor(lengths, dtype=torch.int64)
    )
    return torch.rand(rows, 3), {"bags": bags, "more": [torch.rand(rows, 2, 2).double(), None]}


@given(st.lists(st.integers(0, 9), max_size=8).filter(lambda n: len(n) % 2 == 0), st.booleans())
def test_a_request_comes_back_equal_at_any_place(lengths, weighted) -> None:
    request = request_of(lengths, weighted)
    decode = Decoder(request_of([3, 1], weighted))
    blob = encode(request)
    found = decode(bytearray(64) + blob, 64)
    assert torch.equal(found[0], request[0])
    bags, wanted = found[1]["bags"], request[1]["bags"]
    assert bags.keys() == wanted.keys()
    assert torch.equal(bags.values(), wanted.values())
    assert torch.equal(bags.lengths(), wanted.lengths())
    assert not weighted or torch.equal(bags.weights(), wanted.weights())
    assert torch.equal(found[1]["more"][0], request[1]["more"][0])
    assert found[1]["more"][1] is None


def test_a_decoded_request_has_memory_of_its_own() -> None:
    request = request_of([1, 2], False)
    buffer = bytearray(encode(request))
    found = Decoder(request)(buffer, 0)
    buffer[:] = bytes(len(buffer))
    assert torch.equal(found[0], request[0])


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(NotSupported, match="hold a str"):
        encode(("text",))


def test_an_answer_is_flat_in_the_order_of_its_parts() -> None:
    keyed = KeyedTensor(["a", "b"], [1, 1], torch.tensor([[1.0, 2.0]]))
    answer = {"x": keyed, "y": (torch.tensor([3]), [torch.tensor([[4.0]])]), "z": None}
    assert np.array_equal(flat_answer(answer), np.array([1, 2, 3, 4], np.float32))
