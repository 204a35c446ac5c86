"""Words as ids: baskets and user lines of any text become rows, as a log of interactions does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import BadLines, ItemNames, stream
from grace_torchrec.traces.readers import integer_lines as blocks


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


@pytest.mark.parametrize(
    ("kind", "text", "bags", "names"),
    [
        ("baskets", "milk Brötchen\r\n\n\tmilk  007 7\n", [[0, 1], [0, 2, 3]], ["milk", "Brötchen", "007", "7"]),
        ("user_items", "ann b a\nbob\n9 a b a\n", [[0, 1], [], [1, 0, 1]], ["b", "a"]),
        ("baskets", '"milk" milk "a\n', [[0, 0, 1]], ["milk", '"a']),
        ("baskets", "9000000000000000000 5 -\n", [[0, 1, 2]], ["9000000000000000000", "5", "-"]),
    ],
)  # fmt: skip
def test_words_become_rows_by_first_appearance(tmp_path, kind, text, bags, names):
    (tmp_path / "t").write_bytes(text.encode())
    given_names = ItemNames()
    (trace,) = stream(tmp_path / "t", kind, names=given_names)
    assert (bags_of(trace), given_names.names, trace.num_items) == (bags, names, len(names))


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=30))
def test_blocks_make_no_difference(tmp_path_factory, bags):
    file = tmp_path_factory.mktemp("words") / "t"
    file.write_text("".join(" ".join(f"item-{i}" for i in bag) + "\n" for bag in bags))
    whole, cut = ItemNames(), ItemNames()
    (one,) = stream(file, "baskets", names=whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 64)
        pieces = [bag for piece in stream(file, "baskets", names=cut) for bag in bags_of(piece)]
    assert (pieces, cut.names) == (bags_of(one), whole.names)
    assert [[whole.names[row] for row in bag] for bag in pieces] == [
        [f"item-{i}" for i in bag] for bag in bags
    ]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("baskets", "a\nb a\0\n", "t:2: the line holds a NUL byte; is this a binary file?"),
        ("baskets", 'a\n\nb ""\n', "t:3: an item is empty"),
        ("user_items", "-1 a\nu b -1\n", "t:2: '-1' is negative; drop padding before"),
        ("baskets", " \n\n", "t:1: no line holds an item"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path, kind, text, said):
    (tmp_path / "t").write_text(text)
    with pytest.raises(GraceError, match=said):
        list(stream(tmp_path / "t", kind, names=ItemNames()))
    if "no line" not in said:
        names, bad = ItemNames(), BadLines()
        (trace,) = stream(tmp_path / "t", kind, names=names, bad_lines=bad)
        assert (bad.count, bags_of(trace), names.names) == (1, [[0]], ["a"])
        assert said in bad.first


def test_given_names_are_the_only_ones(tmp_path):
    (tmp_path / "names").write_text("b\na\n")
    (tmp_path / "t").write_text("a b\nx a y\nb\n")
    with pytest.raises(GraceError, match="t:2: item 'x' has no row; add it to the names"):
        list(stream(tmp_path / "t", "baskets", names=ItemNames.load(tmp_path / "names")))
    bad = BadLines()
    names = ItemNames.load(tmp_path / "names")
    (trace,) = stream(tmp_path / "t", "baskets", names=names, bad_lines=bad)
    assert (bags_of(trace), bad.count) == ([[1, 0], [0]], 1)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("baskets", "user,item,rating\nu0,salt,4\nu1,salt,5\n", "t: its first line is that of a log"),
        ("baskets", "user\titem\nu0\tsalt\n", "t: its first line is that of a log"),
        ("baskets", "u0,salt,4\nu1,salt,5\n", "t: every line is one word, none of them twice, with ','"),
        ("user_items", "u0;salt\n\nu1;salt\n", "t: every line is one word, none of them twice, with ';'"),
    ],
)  # fmt: skip
def test_lines_of_a_log_are_no_items(tmp_path, kind, text, said):
    (tmp_path / "t").write_text(text)
    with pytest.raises(GraceError, match=f"{said}.*; .*read it with format=.interactions"):
        list(stream(tmp_path / "t", kind, names=ItemNames(), bad_lines=BadLines()))


@pytest.mark.parametrize("text", ["a,b\n", "a,b\na,b\n", "a,b\nc\n", "a,b c\nd,e\n"])
def test_an_item_may_hold_a_separator(tmp_path, text):
    (tmp_path / "t").write_text(text)
    (trace,) = stream(tmp_path / "t", "baskets", names=ItemNames())
    assert trace.num_bags == text.count("\n")
