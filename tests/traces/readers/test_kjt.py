"""Batches of KeyedJaggedTensor: bags as the sparse features spell them, padding left out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.traces.readers import from_kjts


class Batch:
    """The part of a KeyedJaggedTensor that the reader uses, on numpy arrays."""

    def __init__(self, features, weights=None, tail=()):
        self._features = features
        rows = [bag for bags in features.values() for bag in bags]
        self._lengths = np.array([len(bag) for bag in rows], np.int64)
        self._values = np.array([item for bag in rows for item in bag] + list(tail), np.int64)
        self._weights = None if weights is None else np.array(weights, np.float32)

    def keys(self):
        return list(self._features)

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def weights_or_none(self):
        return self._weights

    def stride(self):
        return len(next(iter(self._features.values()), []))


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


@st.composite
def batches(draw):
    """Batches of features a, b, c with ids -1 (padding) to 9."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        bag = st.lists(st.integers(-1, 9), max_size=4)
        made.append({name: draw(st.lists(bag, min_size=size, max_size=size)) for name in "abc"})
    return made


@given(
    made=batches(),
    names=st.sampled_from(["a", "c", ["b"], ["c", "a"], ("a", "b", "c")]),
    tail=st.booleans(),
)
def test_bags_come_batch_by_batch_feature_by_feature_without_padding(made, names, tail):
    weights = [
        np.arange(sum(len(b) for bags in one.values() for b in bags) + 2 * tail) for one in made
    ]
    given_batches = [Batch(one, w, [-1, -1] * tail) for one, w in zip(made, weights, strict=True)]
    trace = from_kjts(iter(given_batches), names, num_items=10)
    wanted, wanted_weights = [], []
    for one in made:
        position, spelled = 0, {}
        for name, bags in one.items():
            spelled[name] = []
            for bag in bags:
                pairs = [(item, position + k) for k, item in enumerate(bag)]
                spelled[name].append([pair for pair in pairs if pair[0] != -1])
                position += len(bag)
        for name in [names] if isinstance(names, str) else names:
            wanted += [[item for item, _ in row] for row in spelled[name]]
            wanted_weights += [weight for row in spelled[name] for _, weight in row]
    assert bags_of(trace) == wanted
    assert trace.weights_L.tolist() == wanted_weights
    assert trace.num_items == 10


def test_unweighted_batches_make_an_unweighted_trace():
    trace = from_kjts([Batch({"a": [[1], []]}), Batch({"a": [[2, 2]]})], "a")
    assert bags_of(trace) == [[1], [], [2, 2]]
    assert trace.weights_L is None
    assert trace.num_items == 3


def test_keys_may_change_places_between_batches():
    trace = from_kjts([Batch({"a": [[1]], "b": [[2]]}), Batch({"b": [[3]], "a": [[4]]})], "a")
    assert bags_of(trace) == [[1], [4]]


REFUSED = {
    "no batches": (lambda: from_kjts([], "a"), "there are no batches"),
    "no features": (lambda: from_kjts([Batch({"a": [[1]]})], []), "give each feature"),
    "feature twice": (lambda: from_kjts([Batch({"a": [[1]]})], ["a", "a"]), "once"),
    "unknown feature": (
        lambda: from_kjts([Batch({"a": [[1]]}), Batch({"b": [[1]]})], "a"),
        "batch 1: has no feature 'a'; it has ['b']",
    ),
    "negative id": (
        lambda: from_kjts([Batch({"x": [[1]], "a": [[-2]]})], "a"),
        "batch 0: feature 'a': sample 0 holds id -2, which is negative; only -1 (padding) may",
    ),
    "outside the table": (
        lambda: from_kjts([Batch({"a": [[1], [], [2, 7]]})], "a", 5),
        "batch 0: feature 'a': sample 2 holds id 7, the table has 5 rows; fix the ids",
    ),
    "weights in some": (
        lambda: from_kjts([Batch({"a": [[1]]}, [1.0]), Batch({"a": [[1]]})], "a"),
        "some batches carry weights",
    ),
    "weights short": (lambda: from_kjts([Batch({"a": [[1, 2]]}, [1.0])], "a"), "1 weights for 2"),
    "weights NaN": (lambda: from_kjts([Batch({"a": [[1]]}, [np.nan])], "a"), "not finite"),
    "values behind": (lambda: from_kjts([Batch({"a": [[1]]}, tail=[3])], "a"), "add up to 1"),
    "no KJT": (lambda: from_kjts([{"a": [1]}], "a"), "batch 0: is a dict"),
}


@pytest.mark.parametrize(("call", "said"), REFUSED.values(), ids=REFUSED)
def test_batches_that_do_not_fit_are_refused(call, said):
    with pytest.raises(GraceError) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def changed(**parts):
    batch = Batch({"a": [[1], [2]], "b": [[], [3]]})
    for name, value in parts.items():
        setattr(batch, name, value)
    return batch


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (changed(_lengths=np.array([1, 1, 0])), "expected 2 x 2 lengths"),
        (changed(_lengths=np.array([1, 1, 2, -1])), "not negative"),
        (changed(_lengths=np.array([1, 1, 0, 9])), "add up to 11"),
        (changed(_values=np.array([1.0, 2.0, 3.0])), "values have type float64"),
        (changed(_lengths=np.ones(4)), "lengths float64"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(batch, said):
    with pytest.raises(GraceError, match=said):
        from_kjts([batch], "a")


class TestTorchRec:
    """The same with the real class."""

    @pytest.fixture
    def torchrec(self):
        torch = pytest.importorskip("torch")
        jagged = pytest.importorskip("torchrec.sparse.jagged_tensor")
        return SimpleNamespace(kjt=jagged.KeyedJaggedTensor, tensor=torch.tensor)

    def test_lengths_offsets_and_weights(self, torchrec):
        lengths = torchrec.tensor([1, 2, 0, 3])
        values, weights = (
            torchrec.tensor([5, 1, -1, 7, 7, 2]),
            torchrec.tensor([1.0, 2, 3, 4, 5, 6]),
        )
        for kjt in (
            torchrec.kjt(["a", "b"], values, weights, lengths=lengths),
            torchrec.kjt(["a", "b"], values, weights, offsets=torchrec.tensor([0, 1, 3, 3, 6])),
        ):
            trace = from_kjts([kjt, kjt], ["b", "a"])
            assert bags_of(trace) == [[], [7, 7, 2], [5], [1]] * 2
            assert trace.weights_L.tolist() == [4, 5, 6, 1, 2] * 2

    def test_a_batch_size_for_each_feature_is_refused(self, torchrec):
        kjt = torchrec.kjt(
            ["a", "b"],
            torchrec.tensor([1, 2, 3]),
            lengths=torchrec.tensor([1, 1, 1]),
            stride_per_key_per_rank=[[2], [1]],
        )
        with pytest.raises(NotSupported, match="VBE"):
            from_kjts([kjt], "a")
