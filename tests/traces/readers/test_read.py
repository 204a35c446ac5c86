"""``read`` chooses a format only where file or name tell it, and lists the formats where not."""

import gzip
import subprocess
import sys

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import FORMATS, BadLines, ItemNames, read, stream


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


USERS = "0 7 8\n1 9\n2 7\n"
AS_USERS = [[7, 8], [9], [7]]
AS_BASKETS = [[0, 7, 8], [1, 9], [2, 7]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("train.txt", AS_USERS),
        ("train", AS_USERS),
        ("train.txt.gz", AS_USERS),
        ("retail.dat", AS_BASKETS),
        ("retail.dat.gz", AS_BASKETS),
        ("shop.basket", AS_BASKETS),
    ],
)
def test_text_is_told_by_name_or_by_numbered_users(tmp_path, name, wanted):
    raw = USERS.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert bags_of(read(tmp_path / name)) == wanted
    assert bags_of(read(str(tmp_path / name))) == wanted


def test_archives_are_told_by_content_whatever_their_name(tmp_path):
    np.savez(tmp_path / "t.npz", indptr=[0, 1, 3], indices=[2, 0, 1])
    (tmp_path / "t.npz").rename(tmp_path / "t.dat")
    assert bags_of(read(tmp_path / "t.dat")) == [[2], [0, 1]]


def test_a_named_format_wins(tmp_path):
    (tmp_path / "train.txt").write_text(USERS)
    assert bags_of(read(tmp_path / "train.txt", "baskets")) == AS_BASKETS


@pytest.mark.parametrize("text", ["0 1 2\n30 31\n33 4\n", "5 1\n5 2\n5 3\n", "0 1\n1 2\n"])
def test_text_that_may_be_either_is_not_guessed(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(GraceError, match="cannot tell the format") as caught:
        read(tmp_path / "t.txt")
    assert all(name in str(caught.value) for name in FORMATS)


@pytest.mark.parametrize(
    ("name", "data"),
    [("log.jsonl", b'{"user": 1}\n'), ("t.arrow", b"ARROW1\0\0")],
)
def test_other_formats_are_refused_with_the_list(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(GraceError) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}:1: ")
    assert all(known in str(caught.value) for known in FORMATS)
    assert "\n" not in str(caught.value)
    assert "lines hold" not in str(caught.value)  # which of the formats is not known yet


def test_a_part_is_asked_for_behind_the_name(tmp_path):
    np.savez(tmp_path / "t.npz", indptr=[0, 1], indices=[2])
    with pytest.raises(GraceError, match="of format npz has no parts; leave out #3"):
        read(f"{tmp_path}/t.npz#3")
    (tmp_path / "t.npz").rename(tmp_path / "t.npz#3")  # a file that is really named so
    assert bags_of(read(f"{tmp_path}/t.npz#3")) == [[2]]


@pytest.mark.parametrize("data", [b"\x1f\x8b", b"\x1f\x8b\x08" + b"x" * 9])
def test_damaged_packing_is_one_line(tmp_path, data):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(GraceError, match="fetch the file again") as caught:
        read(tmp_path / "t")
    assert "\n" not in str(caught.value)


def test_an_unknown_format_and_an_absent_file_are_one_line(tmp_path):
    (tmp_path / "t").write_text(USERS)
    with pytest.raises(GraceError, match="unknown format 'csv'; formats are npz"):
        read(tmp_path / "t", "csv")
    with pytest.raises(GraceError, match="cannot be read"):
        read(tmp_path / "none")


@pytest.mark.parametrize("name", ["ml100k", "steam200k"])
def test_real_traces_read_by_content(trace_path, name):
    trace = read(trace_path(name))
    assert np.diff(trace.offsets_B1).min() >= 1
    assert trace.counts().min() >= 1  # ids are dense


def test_reading_needs_neither_torch_nor_torchrec():
    code = (
        "import sys, grace_torchrec.traces.readers, grace_torchrec.traces.split\n"
        "import grace_torchrec.traces.synthetic\n"
        "print([m for m in ('torch', 'torchrec', 'fbgemm_gpu') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("format", [None, "baskets", "user_items", "interactions"])
@pytest.mark.parametrize("words", [False, True])
def test_an_empty_file_is_told_no_format(tmp_path, format, words):
    (tmp_path / "log.txt").write_text("")
    with pytest.raises(GraceError, match=r"the file is empty; give a file that holds bags$"):
        read(tmp_path / "log.txt", format, names=ItemNames() if words else None)


@pytest.mark.parametrize("format", [None, "baskets", "interactions"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("words", [False, True])
def test_utf_16_is_no_binary_file(tmp_path, format, encoding, words):
    (tmp_path / "log.txt").write_bytes("\ufeffuser,item\n1,2\n".encode(encoding))
    with pytest.raises(GraceError, match=r"log\.txt: the encoding is UTF-16; convert it to UTF-8"):
        read(tmp_path / "log.txt", format, names=ItemNames() if words else None)


@pytest.mark.parametrize("text", ["1,2\n3\n", "1,2\n3,x\n", "1 2\n3 x\n", "1 2\n3 -4\n"])
def test_the_error_of_a_bad_line_says_that_it_may_be_left_out(tmp_path, text):
    (tmp_path / "log.txt").write_text(text)
    format = "interactions" if "," in text else "baskets"
    with pytest.raises(GraceError, match=r":2: .*; or leave such lines out: stream\(bad_lines="):
        read(tmp_path / "log.txt", format)
    bad = BadLines()
    list(stream(tmp_path / "log.txt", format, bad_lines=bad))
    assert (bad.count, "left out" in bad.first, "leave such" in bad.first) == (1, False, False)
