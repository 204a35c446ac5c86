"""Multi-hot days: tables of fixed bags, said to be an artefact wherever they go."""

import gzip

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import multi_hot, read, read_multi_hot, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*artefact:UserWarning")
DAY = {"0": np.arange(12, dtype=np.int32).reshape(4, 3), "1": np.array([[7], [8]], np.int32)}


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **DAY)
    return tmp_path / "day_0_sparse_multi_hot.npz"


def refused(path, part=None):
    with pytest.raises(GraceError) as caught:
        read_multi_hot(path, part)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_each_row_is_one_bag(file):
    trace = read(f"{file}#0")
    assert trace.ids_L.reshape(4, 3).tolist() == DAY["0"].tolist()
    assert read(f"{file}#1").offsets_B1.tolist() == [0, 1, 2]
    assert "holds 2 tables; name one as" in refused(file)
    assert "has no table '9'" in refused(file, "9")


def test_it_warns_and_the_note_stays_with_the_trace(file, tmp_path):
    with pytest.warns(UserWarning, match="artefact"):
        trace = read(f"{file}#0")
    assert "artefact" in trace.take(np.array([1])).note
    Profile.from_trace("t", trace).save(tmp_path / "p")
    assert "artefact" in Profile.load(tmp_path / "p").tables["t"].trace.note


def test_pieces_add_up_to_the_whole(file, monkeypatch):
    monkeypatch.setattr(multi_hot, "PIECE_IDS", 5)
    pieces = list(stream(f"{file}#0"))
    assert [piece.num_bags for piece in pieces] == [1, 1, 1, 1]
    assert np.concatenate([piece.ids_L for piece in pieces]).tolist() == list(range(12))
    assert (read(f"{file}#0").ids_L == np.arange(12)).all()


def test_packed_archives_read_too(file):
    np.savez_compressed(file, **DAY)
    assert read(f"{file}#1").ids_L.tolist() == [7, 8]
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert read(f"{file}#1").ids_L.tolist() == [7, 8]


BAD = {
    "floats": (np.ones((2, 2)), "table 0: a matrix of integers by row is expected"),
    "vector": (np.ones(3, int), "table 0: a matrix of integers by row is expected"),
    "by column": (np.asfortranarray(np.ones((2, 3), int)), "by column"),
    "negative": (np.array([[1, -4]]), "table 0: behind row 0: id -4"),
    "objects": (np.array([[{}]], object), "table 0: a matrix"),
}


@pytest.mark.parametrize(("table", "said"), BAD.values(), ids=BAD)
def test_what_is_no_matrix_of_ids_is_refused(file, table, said):
    np.savez(file, **{"0": table})
    assert said in refused(file, "0")


def test_no_rows_are_refused_and_no_columns_are_bags_without_ids(file):
    np.savez(file, **{"0": np.zeros((0, 3), int), "1": np.zeros((2, 0), int)})
    assert "holds no bags" in refused(file, "0")
    assert read(f"{file}#1").offsets_B1.tolist() == [0, 0, 0]


def test_archives_of_another_kind_and_damage_are_refused(file, tmp_path):
    raw = file.read_bytes()
    np.savez(tmp_path / "other.npz", indptr=[0], indices=[])
    assert "is no multi-hot archive" in refused(tmp_path / "other.npz")
    for data in (b"", b"PK\x03\x04", raw[:200], raw[:-30]):
        file.write_bytes(data)
        refused(file, "0")
