"""Files of strangers: only plain, unambiguous, fully accounted ones are read."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from grace_torchrec.errors import GraceError
from grace_torchrec.strict_files import MOST_JSON_BYTES, read_arrays, read_json

ARRAYS = {"a": np.arange(6).reshape(2, 3), "b": np.zeros(0, np.int32), "c": np.ones(3, np.uint8)}


def told(read, file):
    """The one line with which a file is refused."""
    with pytest.raises(GraceError) as error:
        pytest.fail(f"gave {read(file, 'plan')}")
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
    return str(error.value)


def test_good_files_come_back_whole(tmp_path):
    (tmp_path / "p.json").write_text('{"a": [1, 2.5, "x"], "b": {"a": null}}')
    assert read_json(tmp_path / "p.json", "plan") == {"a": [1, 2.5, "x"], "b": {"a": None}}
    save_file(ARRAYS, tmp_path / "a.safetensors", metadata={"k": "v"})
    back = read_arrays(tmp_path / "a.safetensors", "plan")
    assert all(np.array_equal(back[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b"[1]", "no JSON object"),
        (b'{"a": 1, "a": 1}', "'a' is there twice"),
        (b'{"x": {"a": 1, "b": 2, "a": 3}}', "'a' is there twice"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_json_that_may_mean_two_things_is_refused(tmp_path, text, words):
    (tmp_path / "p.json").write_bytes(text)
    assert words in told(read_json, tmp_path / "p.json")


def test_a_document_longer_than_any_plan_is_not_read(tmp_path):
    with (tmp_path / "p.json").open("wb") as stream:
        stream.truncate(MOST_JSON_BYTES + 1)
    assert "at most" in told(read_json, tmp_path / "p.json")


@pytest.mark.parametrize("read", [read_json, read_arrays])
def test_links_pipes_devices_and_folders_are_not_followed_or_waited_for(tmp_path, read):
    (tmp_path / "real").write_text("{}")
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.symlink("/dev/zero", tmp_path / "device")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "device", "pipe", "folder"):
        assert "is no plain file" in told(read, tmp_path / name)
    assert "no such file" in told(read, tmp_path / "missing")


def header_of(tmp_path):
    """(header, bytes of the arrays) of a good file."""
    save_file(ARRAYS, tmp_path / "good")
    data = (tmp_path / "good").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(file, header, data, length=None):
    """Write a file of safetensors with such a header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("a", "shape", [2**40, 3]),
        ("a", "shape", [2, -3]),
        ("a", "shape", [2, 3.0]),
        ("a", "shape", [True, 6]),
        ("a", "shape", [6, *[1] * 40]),
        ("a", "shape", None),
        ("a", "dtype", "I128"),
        ("a", "dtype", "BF16"),
        ("a", "dtype", ["I64"]),
        ("a", "dtype", "I32"),
        ("a", "data_offsets", [0, 2**62]),
        ("a", "data_offsets", [48, 0]),
        ("a", "data_offsets", [0]),
        ("c", "data_offsets", [0, 3]),
        ("c", "data_offsets", [49, 52]),
        ("c", "shape", [2**31, 2**31, 2**31]),
    ],
)
def test_arrays_that_claim_other_bytes_than_there_are_make_no_array(tmp_path, name, key, value):
    header, data = header_of(tmp_path)
    header[name][key] = value
    write(tmp_path / "bad", header, data)
    said = told(read_arrays, tmp_path / "bad")
    assert "its header does not account for its bytes" in said or f"(array '{name}' " in said


def test_headers_that_are_none(tmp_path):
    header, data = header_of(tmp_path)
    for bad in (b"", b"[]", b"{", b"[" * 100_000, b'{"a": 1}', b'{"a": {}, "a": {}}'):
        write(tmp_path / "bad", bad, data)
        told(read_arrays, tmp_path / "bad")
    for length in (2**63, 2**40, 1):
        write(tmp_path / "bad", header, data, length)
        told(read_arrays, tmp_path / "bad")
    for rest in (data[:-1], data + b"x", b""):
        write(tmp_path / "bad", header, rest)
        told(read_arrays, tmp_path / "bad")
    for size in (0, 3, 8):
        (tmp_path / "bad").write_bytes(b"\0" * size)
        told(read_arrays, tmp_path / "bad")


@pytest.mark.parametrize(
    ("kind", "inside", "said"),
    [
        ("profile", "", "is a profile folder: give a plan folder"),
        ("served", "plan", "is a served folder: its plan is {}/plan"),
        ("demo", "plan", "is a demo folder: its plan is {}/plan"),
        ("other", "", "is {} a plan folder?"),
    ],
)
def test_a_folder_of_another_kind_is_named_as_what_it_is(tmp_path, kind, inside, said):
    (tmp_path / inside).mkdir(exist_ok=True)
    (tmp_path / f"{kind}.json").write_text("{}")
    assert said.format(tmp_path) in told(read_json, tmp_path / "plan.json")
    assert f"is {tmp_path} a {kind} folder?" in str(told_of(kind, tmp_path / "arrays.safetensors"))


def told_of(kind, file):
    """The error of a folder of a kind that lacks a file, where that kind is wanted."""
    with pytest.raises(GraceError) as error:
        read_arrays(file, kind)
    return error.value
