"""A container that is made anew keeps its type, its keys and what else a known type knows."""

from collections import OrderedDict, defaultdict, namedtuple

import pytest

from grace_torchrec.containers import remade

Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"b": 1, "a": 2}, {"b": 3, "a": 4}),
        (OrderedDict(b=1, a=2), OrderedDict(b=3, a=4)),
        ([1, 2], [3, 4]),
        ((1, 2), (3, 4)),
        (Pair(1, 2), Pair(3, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parts_stand_in_their_places(value, wanted):
    found = remade(value, [3, 4])
    assert found == wanted
    assert type(found) is type(value)


def test_what_a_mapping_makes_of_other_keys_stays():
    assert remade(defaultdict(list, a=1), [2])["b"] == []


def test_parts_are_as_many_as_keys():
    with pytest.raises(ValueError, match="shorter"):
        remade({"a": 1, "b": 2}, [3])
