"""One file is written whole or not at all, whoever else writes it at the same time."""

import stat
from pathlib import Path

import pytest

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError


def test_two_writers_of_one_file_do_not_write_into_each_other(tmp_path, monkeypatch) -> None:
    target, synced, fsync = tmp_path / "names", list[Path](), artifact._fsync

    def meanwhile(path: Path) -> None:
        """Another one writes while the first waits for its disk."""
        synced.append(path)
        if len(synced) == 1:
            artifact.write_file(target, b"of the other")
            assert target.read_bytes() == b"of the other"
        fsync(path)

    monkeypatch.setattr(artifact, "_fsync", meanwhile)
    artifact.write_file(target, b"mine")
    assert target.read_bytes() == b"mine"
    assert [found.name for found in tmp_path.iterdir()] == ["names"]
    assert synced.count(tmp_path) == 2  # the new name is on disk, too


def test_a_file_beside_it_stays_and_permissions_are_those_of_new_files(tmp_path) -> None:
    beside, other = tmp_path / ".names.part", tmp_path / "other"
    beside.write_text("of the user")
    other.write_text("")
    artifact.write_file(tmp_path / "names", b"mine")
    assert beside.read_text() == "of the user"
    mode, wanted = (stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "names", other))
    assert mode == wanted


def test_what_cannot_be_written_leaves_nothing(tmp_path) -> None:
    (tmp_path / "names").mkdir()
    with pytest.raises(OSError, match="names"):
        artifact.write_file(tmp_path / "names", b"mine")
    assert [found.name for found in tmp_path.iterdir()] == ["names"]


@pytest.mark.parametrize("kind", ["plan", *artifact.BESIDE])
def test_a_folder_takes_the_place_of_its_own_kind_and_of_an_empty_one(tmp_path, kind) -> None:
    for name in ("empty", "old"):
        (tmp_path / name).mkdir()
    for name in (f"{kind}.json", artifact.ARRAYS_FILE, *artifact.BESIDE.get(kind, ())):
        (tmp_path / "old" / name).write_text("{}")
    for name in ("new", "empty", "old"):
        artifact.write_folder(tmp_path / name, kind, {"of": name}, {})
        assert artifact.read_folder(tmp_path / name, kind)[0]["of"] == name
    (tmp_path / "old" / "thesis.txt").write_text("mine")
    with pytest.raises(GraceError, match=f"holds 'thesis.txt', which is not of a {kind} folder"):
        artifact.write_folder(tmp_path / "old", kind, {}, {})
    assert (tmp_path / "old" / "thesis.txt").read_text() == "mine"
