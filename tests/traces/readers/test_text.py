"""Text readers: what is accepted reads as the bags it spells, what is not is named by its line."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import (
    BadLines,
    integer_lines,
    read_baskets,
    read_npz,
    read_user_items,
    stream,
)
from grace_torchrec.traces.readers.line_errors import NAME_ITEMS

bags_of_ids = st.lists(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=5), min_size=1)


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


def refused(call, path, data, **more):
    """Write ``data``, read it, and return the one line that refuses it, without the path."""
    path.write_bytes(data)
    with pytest.raises(GraceError) as caught:
        call(path, **more)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    return message.removeprefix(f"{path}:")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.txt"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("text") / "trace.txt"


@given(bags=bags_of_ids, data=st.data())
def test_any_spelling_of_the_bags_reads_as_the_bags(scratch, bags, data):
    gaps, ends = (
        st.sampled_from([" ", "\t", "   ", " \t"]),
        st.sampled_from(["\n", "\r\n", " \r\n"]),
    )
    text = ""
    for bag in bags:
        text += data.draw(st.sampled_from(["", "\n", " \t\r\n", " "]))
        text += data.draw(gaps).join("0" * data.draw(st.integers(0, 3)) + str(i) for i in bag)
        text += data.draw(ends)
    if data.draw(st.booleans()):
        text = text.rstrip("\r\n")
    raw = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()
    scratch.write_bytes(gzip.compress(raw) if data.draw(st.booleans()) else raw)
    assert bags_of(read_baskets(scratch)) == bags
    assert [bag[1:] for bag in bags] == bags_of(read_user_items(scratch))


@given(
    text=st.text(alphabet="0123456789 \t\r\n-x+_\0\u0661\u00e9", max_size=60),
    block_bytes=st.integers(1, 20),
)
@example(text="1 2\r3 4\n", block_bytes=4)
@example(text="1\n" + "9" * 18 + " " + "9" * 19, block_bytes=50)
@example(text="1 00000000000000000000000000002\n", block_bytes=7)
def test_reading_agrees_with_the_grammar_whatever_the_block_size(scratch, text, block_bytes):
    scratch.write_bytes(text.encode())
    lines = re.split("\r?\n", text.removesuffix("\r"))
    good = [re.fullmatch("[ \t]*([0-9]+([ \t]+|$))*", line) for line in lines]
    numbers = [[int(token) for token in re.findall("[0-9]+", line)] for line in lines]
    fits = [
        ok and all(number < 2**62 for number in row) for ok, row in zip(good, numbers, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_lines, "BLOCK_BYTES", block_bytes)
        if all(fits) and any(numbers):
            assert bags_of(read_baskets(scratch)) == [row for row in numbers if row]
        else:
            with pytest.raises(GraceError) as caught:
                read_baskets(scratch)
            line = 1 if all(fits) else fits.index(next(f for f in fits if not f)) + 1
            assert str(caught.value).startswith(f"{scratch}:{line}: ")


BAD_LINES = {
    "word": (b"1 two 3", "'two' is not an integer"),
    "float": (b"1 2.5", "'2.5' is not an integer"),
    "exponent": (b"1e3", "'1e3' is not an integer"),
    "plus": (b"+1", "'+1' is not an integer"),
    "underscore": (b"1_000", "'1_000' is not an integer"),
    "comma": (b"1,2,3", "'1,2,3' is not an integer"),
    "hex": (b"0x10", "'0x10' is not an integer"),
    "negative": (b"4 -1", "'-1' is negative"),
    "minus": (b"4 -", "'-' is not an integer"),
    "too large": (b"1 4611686018427387904", "'4611686018427387904' is too large"),
    "far too large": (b"9" * 10_000, "...' is too large"),
    "not UTF-8": (b"1 \xff\xfe 2", "byte 0xff is not UTF-8"),
    "NUL": (b"1 \0 2", "NUL byte"),
    "other digits": ("1 \u0661".encode(), r"'\u0661' is not an integer"),
    "no-break space": ("1\u00a02".encode(), r"'1\xa02' is not an integer"),
    "form feed": (b"1\f2", r"'1\x0c2' is not an integer"),
    "lone return": (b"1 2\r3 4", r"'2\r3' is not an integer"),
    "escape codes": (b"\x1b[31m1", r"'\x1b[31m1' is not an integer"),
}


@pytest.mark.parametrize("reader", [read_baskets, read_user_items])
@pytest.mark.parametrize(("line", "said"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named_with_what_to_do(file, reader, line, said):
    message = refused(reader, file, b"0 1 2\r\n\n3 4\n" + line + b"\n5 6\n")
    assert message.startswith("4: ")
    assert said in message
    assert "; " in message
    assert message.isascii()
    assert len(message) < 250


def test_a_bad_line_is_found_far_behind_the_first_block(file):
    message = refused(read_baskets, file, b"1 2 3\n" * 720_000 + b"1 x\n")
    assert message.startswith("720001: 'x'")


@pytest.mark.parametrize("reader", [read_baskets, read_user_items])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "1: the file is empty"),
        (b"\n \r\n", "1: no line holds"),
        (b"\xef\xbb\xbf", "1: the file is empty"),
    ],
    ids=["empty", "blank", "mark only"],
)
def test_a_file_without_bags_is_refused_also_packed(file, reader, data, said):
    assert refused(reader, file, data).strip().startswith(said)
    assert refused(reader, file, gzip.compress(data)).strip().startswith(said)


def test_packed_files_that_break_off_or_go_on_are_refused(file):
    packed = gzip.compress(b"1 2 3\n" * 10_000)
    for data in (
        packed[:-12],
        packed[:20],
        packed[:2],
        packed + b"junk",
        packed[:15] + b"\xff" * 9 + packed[24:],
    ):
        assert "fetch the file again" in refused(read_baskets, file, data)


@pytest.mark.parametrize("reader", [read_baskets, read_user_items, read_npz])
def test_a_pointer_of_git_lfs_is_recognised(file, reader):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    assert "is a git-lfs pointer, not the data; run `git lfs pull`" in refused(
        reader, file, pointer
    )


@pytest.mark.parametrize("reader", [read_baskets, read_user_items, read_npz])
def test_a_place_without_a_file_is_one_line(tmp_path, reader):
    for place in (tmp_path / "none", tmp_path, str(tmp_path / "a\0b")):
        with pytest.raises(GraceError, match="cannot be read"):
            reader(place)


def test_an_endless_line_is_refused_before_it_fills_the_memory(file, monkeypatch):
    monkeypatch.setattr(integer_lines, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(integer_lines, "MAX_LINE_BYTES", 1 << 12)
    message = refused(read_baskets, file, b"1 2\n" + b"7 " * 10_000)
    assert message.startswith("2: the line is longer than 4,096 bytes")


def test_users_without_items_are_empty_bags(file):
    file.write_text("0 5 6\n1\n\n2 7\n")
    assert bags_of(read_user_items(file)) == [[5, 6], [], [7]]


def test_items_that_count_from_one(file):
    file.write_text("0 1 2\n1 3\n")
    assert bags_of(read_user_items(file, one_indexed=True)) == [[0, 1], [2]]
    message = refused(read_user_items, file, b"0 1 2\n\n3 1 0\n", one_indexed=True)
    assert message.startswith("3: item 0")


def test_a_user_may_have_the_number_zero_in_a_file_that_counts_from_one(file):
    file.write_text("0\n0 1\n")
    assert bags_of(read_user_items(file, one_indexed=True)) == [[], [0]]


@pytest.mark.parametrize("name", ["retail", "gowalla_poi"])
def test_a_real_trace_written_as_text_reads_back(trace_path, file, name):
    trace = read_npz(trace_path(name))
    rows = [" ".join(map(str, bag)) for bag in bags_of(trace)]
    file.write_text("\n".join(rows))
    again = read_baskets(file)
    assert (again.ids_L == trace.ids_L).all()
    assert (again.offsets_B1 == trace.offsets_B1).all()
    file.write_text("".join(f"{user} {row}\r\n" for user, row in enumerate(rows)))
    assert (read_user_items(file).ids_L == trace.ids_L).all()


@pytest.mark.parametrize(("form", "wanted"), [("baskets", [[1, 2], [3], [4, 5]]), ("user_items", [[2], [], [5]])])  # fmt: skip
def test_bad_lines_make_no_bag_and_are_counted(file, form, wanted):
    file.write_text("1 2\n1 x\n3\n-1\n\n4 5\n")
    bad = BadLines()
    assert [bag for piece in stream(file, form, bad_lines=bad) for bag in bags_of(piece)] == wanted
    assert bad == BadLines(2, f"{file}:2: 'x' is not an integer; lines hold non-negative integers with spaces between them; {NAME_ITEMS}")  # fmt: skip
    file.write_text("x\n")
    with pytest.raises(GraceError, match="no line holds a number"):
        list(stream(file, form, bad_lines=BadLines()))
