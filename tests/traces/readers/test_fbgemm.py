"""FBGEMM request files: one table of many, tensors only, mistakes in one line."""

import gzip

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import fbgemm, read, read_fbgemm, stream

torch = pytest.importorskip("torch")
INDICES = torch.tensor([1, 2, 3, 4, 5, 6])
OFFSETS = torch.tensor([0, 2, 2, 5, 6])
LENGTHS = torch.tensor([[2, 0], [3, 1]])
ALL = [[1, 2], [], [3, 4, 5], [6]]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "requests.pt"


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


def refused(path, **more):
    with pytest.raises(GraceError) as caught:
        read_fbgemm(path, **more)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_the_bags_of_one_table(file, zipped, packed):
    torch.save((INDICES, OFFSETS, LENGTHS), file, _use_new_zipfile_serialization=zipped)
    if packed:
        file.write_bytes(gzip.compress(file.read_bytes()))
    assert bags_of(read_fbgemm(file, "0")) == ALL[:2]
    assert bags_of(read(f"{file}#1")) == ALL[2:]
    assert [bags_of(piece) for piece in stream(f"{file}#1")] == [ALL[2:]]
    assert "holds 2 tables" in refused(file)


@pytest.mark.parametrize("piece_ids", [1, 2, 3, 99])
def test_a_table_comes_in_pieces(file, monkeypatch, piece_ids):
    monkeypatch.setattr(fbgemm, "PIECE_IDS", piece_ids)
    torch.save((INDICES, OFFSETS), file)
    pieces = list(stream(file))
    assert [bag for piece in pieces for bag in bags_of(piece)] == ALL == bags_of(read_fbgemm(file))
    assert all(piece.num_ids <= piece_ids or piece.num_bags == 1 for piece in pieces)
    assert (len(pieces) == 1) == (piece_ids == 99)


def test_the_number_of_tables_comes_from_an_argument_lengths_or_the_name(tmp_path, file):
    torch.save((INDICES, OFFSETS), file)
    assert bags_of(read_fbgemm(file)) == ALL
    assert bags_of(read_fbgemm(file, "3", num_tables=4)) == [[6]]
    named = tmp_path / "fbgemm_t2_bs2.pt"
    torch.save({"indices": INDICES.int(), "offsets": OFFSETS.int()}, named)
    assert bags_of(read(f"{named}#0")) == ALL[:2]


def test_indices_and_offsets_in_two_files(tmp_path, file):
    torch.save(INDICES, file)
    torch.save(OFFSETS, tmp_path / "offsets.pt")
    assert bags_of(read_fbgemm(file, offsets=tmp_path / "offsets.pt")) == ALL
    torch.save((INDICES, OFFSETS), file)
    assert "holds 2 tensors, 1 expected" in refused(file, offsets=tmp_path / "offsets.pt")


def test_a_pointer_of_git_lfs_is_recognised(file):
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert "is a git-lfs pointer, not the data; run `git lfs pull`" in refused(file)
    with pytest.raises(GraceError, match="git-lfs pointer"):
        read(f"{file}#3")


class Bomb:
    """An object whose unpickling would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_never_run(tmp_path, file, zipped):
    torch.save(Bomb(str(tmp_path / "ran")), file, _use_new_zipfile_serialization=zipped)
    assert "objects that are not loaded" in refused(file)
    assert not (tmp_path / "ran").exists()


BAD = {
    "one tensor": (lambda: INDICES, "holds 1 tensors"),
    "four tensors": (lambda: (INDICES,) * 4, "holds 4 tensors"),
    "no tensor": (lambda: ([1], OFFSETS), "indices: is a list"),
    "floats": (lambda: (INDICES.float(), OFFSETS), "indices: must be a vector of integers"),
    "matrix": (lambda: (INDICES[None], OFFSETS), "indices: must be a vector"),
    "sparse": (lambda: (INDICES.to_sparse(), OFFSETS), "indices: is a Tensor"),
    "negative id": (lambda: (-INDICES, OFFSETS), "table 0: id -6 at position 5 is negative"),
    "offsets too far": (lambda: (INDICES, torch.tensor([0, 9])), "offsets of table 0 run from 0"),
    "offsets below 0": (lambda: (INDICES, torch.tensor([-1, 3])), "offsets of table 0 run from -1"),
    "offsets fall": (lambda: (INDICES, torch.tensor([0, 4, 2, 6])), "table 0: offsets fall at bag"),
    "no bags": (lambda: (INDICES, torch.tensor([0])), "holds no bags"),
    "no offsets": (lambda: (INDICES, torch.zeros(0, dtype=torch.int64)), "0 offsets do not fit"),
    "lengths": (lambda: (INDICES, OFFSETS, torch.ones(3, 2)), "5 offsets do not fit 3 tables"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_tensors_that_do_not_fit_are_refused(file, content, said):
    torch.save(content(), file)
    assert said in refused(file)


@pytest.mark.parametrize("part", ["4", "-1", "x", "\u0663", "1.0"])
def test_a_table_that_is_not_there(file, part):
    torch.save((INDICES, OFFSETS), file)
    assert "has no table" in refused(file, part=part, num_tables=4)


@pytest.mark.parametrize("data", [b"", b"junk", b"PK\x03\x04", b"\x80\x02", b"\x1f\x8b\x08"])
def test_other_files_are_refused(file, data):
    file.write_bytes(data)
    refused(file)


def test_damage_anywhere_is_one_line_or_harmless(file):
    torch.save((INDICES, OFFSETS), file)
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        raw = bytearray(good[: rng.integers(1, len(good) + 1)])
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        file.write_bytes(raw)
        try:
            read_fbgemm(file)
        except GraceError as error:
            assert "\n" not in str(error)  # noqa: PT017
