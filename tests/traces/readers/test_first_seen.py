"""Numbers by first appearance: what a dictionary gives, whatever the blocks; names survive files."""

import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import ItemNames, stream
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
    saved = ItemNames()
    saved.names = names
    saved.save(file)
    assert ItemNames.load(file).names == names


@pytest.mark.parametrize(
    "text",
    ["\ufeffa\nb c\n", "a\t\r\n b c \r\n", '"a"\n" b c "', 'a\n "b c"\t\n'],
    ids=["byte order mark", "blanks", "quotes", "both"],
)
def test_names_are_read_as_the_items_of_a_log_are(tmp_path, text):
    (tmp_path / "names").write_bytes(text.encode())
    (tmp_path / "log").write_bytes(b"user,item\n1,a\n1,b c\n")
    names = ItemNames.load(tmp_path / "names")
    assert names.names == ["a", "b c"]
    (trace,) = stream(tmp_path / "log", names=names)
    assert trace.ids_L.tolist() == [0, 1]


def test_names_that_could_not_be_written_leave_the_old_ones(tmp_path):
    old, new = ItemNames(), ItemNames()
    old.names, new.names = ["a", "b"], [f"item {k}" for k in range(10_000)]
    old.save(tmp_path / "names")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as a disk that is full
    try:
        with pytest.raises(GraceError, match="names: cannot be written"):
            new.save(tmp_path / "names")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ItemNames.load(tmp_path / "names").names == ["a", "b"]
    assert [file.name for file in tmp_path.iterdir()] == ["names"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("a\n\nb\n", ":2: the line is blank"), ("", ":1: the line is blank"), ("a\nb\na\n", ":3: item 'a' stands"),
     ("a\n \"\" \n", ":2: the line is blank"), ("a\n\"a\"\n", ":2: item 'a' stands")],
)  # fmt: skip
def test_names_that_are_no_list_of_rows_are_refused(tmp_path, text, said):
    (tmp_path / "names").write_text(text)
    with pytest.raises(GraceError, match=said):
        ItemNames.load(tmp_path / "names")
    with pytest.raises(GraceError, match="cannot be written"):
        ItemNames().save(tmp_path)
