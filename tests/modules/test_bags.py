"""Bags at the door: what is handed to the ops, and that nothing unfit passes."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torchrec import KeyedJaggedTensor

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules.bags import bags_of


def check(batch, names=("item",), is_weighted=False, strict=False):
    return bags_of(batch, list(names), is_weighted, strict)


def test_positions_are_those_of_the_batch_in_output_order(batch_of):
    batch = batch_of({"x": [[9]], "user": [[1, 2]], "item": [[3]]})
    ids, offsets, weights, stride, positions = check(batch, ("item", "user", "item"))
    assert ids.tolist() == [9, 1, 2, 3]
    assert offsets.tolist() == [0, 1, 3, 4]
    assert (weights, stride, positions) == (None, 1, [2, 1, 2])


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=8).filter(lambda bags: len(bags) % 2 == 0),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from(["lengths", "offsets", "both", "table of lengths"]),
)
def test_lengths_and_offsets_say_the_same(lengths, dtype, given_as):
    bounds = torch.tensor(lengths, dtype=dtype)
    offsets = torch.cat([bounds.new_zeros(1), bounds.cumsum(0).to(dtype)])
    layout = {
        "lengths": {"lengths": bounds},
        "offsets": {"offsets": offsets},
        "both": {"lengths": bounds, "offsets": offsets},
        "table of lengths": {"lengths": bounds.view(2, -1), "stride": len(lengths) // 2},
    }[given_as]
    values = torch.arange(sum(lengths))
    ids, checked, _, stride, _ = check(
        KeyedJaggedTensor(keys=["user", "item"], values=values, **layout)
    )
    assert torch.equal(ids, values)
    assert checked.dtype == torch.int64
    assert checked.tolist() == offsets.tolist()
    assert stride == len(lengths) // 2


def test_what_is_handed_on_is_contiguous():
    every_second = torch.arange(8)[::2]
    ids, offsets, weights, _, _ = check(
        KeyedJaggedTensor(
            keys=["item"],
            values=every_second,
            offsets=torch.tensor([0, 9, 4, 9])[::2],
            weights=torch.ones(8)[::2],
        ),
        is_weighted=True,
    )
    assert ids.tolist() == [0, 2, 4, 6]
    assert offsets.tolist() == [0, 4]
    assert all(tensor.is_contiguous() for tensor in (ids, offsets, weights))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_weights_are_handed_on_as_float32(dtype):
    batch = KeyedJaggedTensor(
        keys=["item"],
        values=torch.tensor([1, 2]),
        lengths=torch.tensor([2]),
        weights=torch.tensor([0.5, -2.0], dtype=dtype),
    )
    weights = check(batch, is_weighted=True)[2]
    assert (weights.dtype, weights.tolist()) == (torch.float32, [0.5, -2.0])


def test_a_batch_is_not_changed(batch_of):
    batch = batch_of({"item": [[1, 2], []]}, {"item": [[1.0, 2.0], []]}, ids=torch.int32)
    before = [batch.values().clone(), batch.lengths().clone(), batch.weights().clone()]
    for is_weighted in (True, False):
        check(batch, is_weighted=is_weighted)
    after = [batch.values(), batch.lengths(), batch.weights()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_neither_lengths_nor_offsets():
    with pytest.raises(GraceError, match="neither lengths nor offsets; pass one of them"):
        check(KeyedJaggedTensor(keys=["item"], values=torch.tensor([1])))


def test_a_batch_without_features():
    with pytest.raises(GraceError, match=r"lacks feature 'item'; it has \[\]"):
        check(KeyedJaggedTensor.empty())


@pytest.mark.parametrize("ids", [torch.ones(2), torch.ones(2, dtype=torch.int16)])
def test_ids_of_other_types(ids):
    with pytest.raises(GraceError, match=f"ids are {ids.dtype}"):
        check(KeyedJaggedTensor(keys=["item"], values=ids, lengths=torch.tensor([2])))


def test_ids_that_are_no_vector():
    batch = KeyedJaggedTensor(
        keys=["item"], values=torch.ones(2, 3, dtype=torch.int64), lengths=torch.tensor([2])
    )
    with pytest.raises(GraceError, match=r"of shape \(2, 3\); int32 or int64 vector expected"):
        check(batch)


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=7), st.integers(0, 9))
@example([0, 3, 2, 3], 3)
@example([1, 2, 3], 3)
@example([0, 1, 2], 3)
@example([0, 2, 4], 3)
def test_only_offsets_that_cover_the_ids_pass(offsets, num_ids):
    batch = KeyedJaggedTensor(
        keys=["item"],
        values=torch.zeros(num_ids, dtype=torch.int64),
        offsets=torch.tensor(offsets),
    )
    fits = offsets == sorted(offsets) and (offsets[0], offsets[-1]) == (0, num_ids)
    if fits:
        assert check(batch)[1].tolist() == offsets
    else:
        with pytest.raises(GraceError, match=r"offsets|lengths"):
            check(batch)


def test_lengths_that_contradict_the_offsets_are_named_with_their_bag():
    batch = KeyedJaggedTensor(
        keys=["item"],
        values=torch.arange(5),
        lengths=torch.tensor([2, 1, 2], dtype=torch.int32),
        offsets=torch.tensor([0, 2, 4, 5]),
    )
    with pytest.raises(GraceError, match=r"offsets 2 to 4 at bag 1, its length is 1"):
        check(batch)


def test_strict_asks_for_no_weights_only_where_they_would_be_ignored(batch_of):
    weighted = batch_of({"item": [[1]]}, {"item": [[1.0]]})
    with pytest.raises(NotSupported, match="they are ignored"):
        check(weighted, strict=True)
    assert check(weighted, is_weighted=True, strict=True)[2].tolist() == [1.0]
    assert check(batch_of({"item": [[1]]}), strict=True)[2] is None
