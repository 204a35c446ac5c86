"""Numbers by first appearance: what a dictionary gives, whatever the blocks; names survive files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import ItemNames
from grace_torchrec.traces.readers.first_seen import FirstSeen
from grace_torchrec.traces.trace import Trace

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1)


@given(st.lists(st.lists(st.sampled_from([0, 1, 7, 8, 2**63, 2**64 - 1]))))
def test_keys_are_numbered_as_a_dictionary_would(blocks):
    seen, wanted = FirstSeen(), {}
    for block in blocks:
        before = len(wanted)
        numbers, new = seen.numbers_of(np.array(block, np.uint64))
        assert numbers.tolist() == [wanted.setdefault(key, len(wanted)) for key in block]
        assert [block[place] for place in new] == list(wanted)[before:]
        assert len(seen) == len(wanted)
    known, _ = seen.numbers_of(np.array([7, 99], np.uint64), grow=False)
    assert known.tolist() == [wanted.get(7, -1), -1]


def test_sparse_numbers_become_rows_and_keep_their_names(tmp_path):
    names = ItemNames()
    sparse = Trace.from_bags([[2**61, 5, 2**61], [4 * 10**18]])
    trace = names.renumbered(sparse, "f")
    assert (trace.ids_L.tolist(), trace.num_items) == ([0, 1, 0, 2], 3)
    assert names.names == [str(2**61), "5", str(4 * 10**18)]
    assert names.renumbered(Trace.from_bags([[7, 5]]), "f").ids_L.tolist() == [3, 1]
    names.save(tmp_path / "names")
    given_names = ItemNames.load(tmp_path / "names")
    assert given_names.renumbered(sparse, "f").ids_L.tolist() == [0, 1, 0, 2]
    with pytest.raises(GraceError, match="f: item 6 has no row"):
        given_names.renumbered(Trace.from_bags([[5, 6]]), "f")
    assert ItemNames().renumbered(Trace.from_bags([[]]), "f").num_ids == 0


@given(
    st.lists(NAMES.filter(lambda name: name.strip(" \t") == name != ""), unique=True, min_size=1)
)
def test_names_come_back_from_their_file(tmp_path_factory, names):
    file = tmp_path_factory.mktemp("names") / "names.txt"
    file.write_text("".join(f"{name}\n" for name in names), "utf-8")
    loaded = ItemNames.load(file)
    assert loaded.names == names
    loaded.save(file)
    assert ItemNames.load(file).names == names


@pytest.mark.parametrize(
    ("text", "said"),
    [("a\n\nb\n", ":2: the line is blank"), ("", ":1: the line is blank"), ("a\nb\na\n", ":3: item 'a' stands")],
)  # fmt: skip
def test_names_that_are_no_list_of_rows_are_refused(tmp_path, text, said):
    (tmp_path / "names").write_text(text)
    with pytest.raises(GraceError, match=said):
        ItemNames.load(tmp_path / "names")
    with pytest.raises(GraceError, match="cannot be written"):
        ItemNames().save(tmp_path)
