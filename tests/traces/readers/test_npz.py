"""Archives: good ones come back exactly, bad ones are one line with file and array."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import read_npz

GOOD = {"indptr": np.array([0, 2, 2, 3]), "indices": np.array([4, 1, 1], np.int32)}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "trace.npz"


def refused(path):
    with pytest.raises(GraceError) as caught:
        read_npz(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_needed_and_optional_arrays_come_back(file):
    more = {
        "weights": np.array([1, 0.5, -2], np.float64),
        "time": np.array([5, 3, 9]),
        "split": np.array([0, 1, 2], np.uint8),
        "num_rows": np.array(11),
        "visits": np.array(["ignored"]),
    }
    np.savez_compressed(file, **GOOD, **more)
    trace = read_npz(file)
    assert trace.offsets_B1.tolist() == [0, 2, 2, 3]
    assert trace.ids_L.tolist() == [4, 1, 1]
    assert trace.num_items == 11
    assert trace.weights_L.tolist() == [1, 0.5, -2]
    assert trace.time_B.tolist() == [5, 3, 9]
    assert trace.split_L.tolist() == [0, 1, 2]
    np.savez(file, **GOOD)
    assert read_npz(file).num_items == 5


BAD = {
    "no indptr": ({"indptr": None}, "array indptr is missing"),
    "no indices": ({"indices": None}, "array indices is missing"),
    "indptr too short": ({"indptr": np.array([0, 2])}, "array indptr: offsets run from 0 to 2"),
    "indptr falls": ({"indptr": np.array([0, 3, 2, 3])}, "array indptr: offsets fall at bag 1"),
    "indptr of floats": ({"indptr": np.array([0.0, 3.0])}, "array indptr: offsets must be"),
    "no bags": ({"indptr": np.zeros(1, int), "indices": np.zeros(0, int)}, "holds no bags"),
    "indptr empty": ({"indptr": np.zeros(0, np.int64)}, "array indptr: offsets must be"),
    "indptr a number": ({"indptr": np.array(3)}, "array indptr: offsets must be"),
    "negative id": ({"indices": np.array([4, -7, 1])}, "array indices: id -7"),
    "huge id": ({"indices": np.array([4, 2**63, 1], np.uint64)}, "array indices: id 9223"),
    "ids of floats": ({"indices": np.ones(3)}, "array indices: ids must be a vector of integers"),
    "ids in a matrix": ({"indices": np.ones((3, 1), int)}, "array indices: ids must be"),
    "ids of text": ({"indices": np.array(["1", "2", "3"])}, "array indices: has type <U1"),
    "ids of objects": ({"indices": np.array([1, {}, 3], object)}, "array indices: not readable"),
    "weights short": ({"weights": np.ones(2)}, "array weights: weights has shape (2,)"),
    "weights NaN": ({"weights": np.array([1, np.nan, 1])}, "array weights: weight 1 is not"),
    "weights complex": ({"weights": np.ones(3, complex)}, "array weights: has type complex128"),
    "time per id": ({"time": np.ones(9)}, "array time: time has shape (9,)"),
    "time infinite": ({"time": np.array([1, 2, np.inf])}, "array time: time holds entries"),
    "split floats": ({"split": np.ones(3)}, "array split: split has type float64"),
    "num_rows small": (
        {"num_rows": 4},
        "array indices: bag 0 holds id 4, the table has 4 rows; give num_rows >= 5 or",
    ),
    "num_rows zero": ({"num_rows": 0}, "array num_rows: must be one positive integer"),
    "num_rows a vector": ({"num_rows": np.array([5, 6])}, "array num_rows: must be one"),
    "num_rows a float": ({"num_rows": 5.5}, "array num_rows: must be one positive integer"),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD)
def test_the_bad_array_is_named(file, change, said):
    arrays = {name: a for name, a in {**GOOD, **change}.items() if a is not None}
    np.savez(file, **arrays)
    assert said in refused(file)


def test_sparse_matrices_read_by_row_only(file):
    matrix = scipy.sparse.csr_array(np.array([[0, 1, 1], [1, 0, 0]]))
    scipy.sparse.save_npz(file, matrix)
    assert read_npz(file).ids_L.tolist() == [1, 2, 0]
    scipy.sparse.save_npz(file, matrix.tocsc())
    assert "not CSR" in refused(file)


class Bomb:
    """An object whose unpickling would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["indptr", "weights", "format"])
def test_a_pickle_is_never_run(file, tmp_path, name):
    bomb = np.array([Bomb(str(tmp_path / "ran"))] * 3, object)
    np.savez(file, **{**GOOD, name: bomb})
    assert f"array {name}: not readable" in refused(file)
    file.write_bytes(pickle.dumps(bomb))
    assert "is no npz archive" in refused(file)
    assert not (tmp_path / "ran").exists()


def archive(**members):
    """Bytes of a zip with raw members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy(shape, descr="<i8", data=b""):
    """Bytes of an .npy file whose header claims ``shape`` and ``descr``."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "indptr",
    [
        b"",
        b"junk",
        npy("(10**15,)"),
        npy("(1000000000000000,)"),
        npy("(-3,)"),
        npy("(3,)", data=b"\0" * 8),
        npy("3"),
        npy("(3,)", descr="|O"),
        npy("(3,)", descr="nonsense"),
        npy("((("),
        npy("(" * 3000),
    ],
    ids=[
        "empty",
        "junk",
        "expression",
        "huge",
        "negative",
        "short",
        "number",
        "object",
        "type",
        "syntax",
        "deep",
    ],
)
def test_headers_that_lie_are_refused(file, indptr):
    file.write_bytes(archive(indptr=indptr, indices=npy("(0,)")))
    assert "array indptr" in refused(file)


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"PK\x03\x04", b"\x93NUMPY", b"\x1f\x8b", json.dumps({}).encode()]
)
def test_other_files_are_no_archives(file, data):
    file.write_bytes(data)
    refused(file)


@given(st.data())
def test_damage_anywhere_is_refused_in_one_line_or_harmless(tmp_path_factory, data):
    stream = io.BytesIO()
    (np.savez if data.draw(st.booleans()) else np.savez_compressed)(stream, **GOOD, num_rows=9)
    raw = bytearray(stream.getvalue())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "damaged.npz"
    file.write_bytes(raw)
    try:
        trace = read_npz(file)
    except GraceError as error:
        assert str(error).startswith(f"{file}: ")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert trace.num_items >= 5
