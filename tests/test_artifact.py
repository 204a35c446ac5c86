"""One file is written whole or not at all, whoever else writes it at the same time."""

import os
import stat
import time
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_folder_and_all_in_it_have_the_permissions_of_new_ones(tmp_path, umask) -> None:
    """safetensors writes files that nobody else can read, mkdtemp such folders."""
    before = os.umask(umask)
    try:
        artifact.write_folder(tmp_path / "plan", "plan", {}, {"a": np.zeros(3)})
        with artifact.new_folder(tmp_path / "served", "served") as aside:
            artifact.write_folder(aside / "plan", "plan", {}, {"a": np.zeros(3)})
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
    finally:
        os.umask(before)
    modes = {True: (tmp_path / "folder").stat().st_mode, False: (tmp_path / "file").stat().st_mode}
    found = [tmp_path / "plan", *(tmp_path / "plan").iterdir()]
    found += [tmp_path / "served", *(tmp_path / "served").rglob("*")]
    assert len(found) == 7
    for each in found:
        assert each.stat().st_mode == modes[each.is_dir()], each


def test_a_folder_in_one_that_a_group_shares_belongs_to_the_group(tmp_path) -> None:
    tmp_path.chmod(0o2775)
    (tmp_path / "folder").mkdir()
    artifact.write_folder(tmp_path / "plan", "plan", {}, {"a": np.zeros(3)})
    modes = [(tmp_path / name).stat().st_mode for name in ("plan", "folder")]
    assert modes[0] == modes[1]
    assert modes[0] & stat.S_ISGID


def test_what_cannot_be_written_leaves_nothing(tmp_path) -> None:
    (tmp_path / "names").mkdir()
    with pytest.raises(OSError, match="names"):
        artifact.write_file(tmp_path / "names", b"mine")
    assert [found.name for found in tmp_path.iterdir()] == ["names"]


def fill(folder: Path, kind: str) -> None:
    """Put everything into a folder that its kind may hold."""
    ours = {f"{kind}.json": artifact.FILE, artifact.ARRAYS_FILE: artifact.FILE}
    if kind == "board":
        ours = {"events.out.tfevents.17.host.1.0": artifact.FILE}
    for name, inside in {**ours, **artifact.BESIDE.get(kind, {})}.items():
        if inside == artifact.FILE:
            (folder / name).write_text("{}")
        else:
            (folder / name).mkdir()
            fill(folder / name, inside)


@pytest.mark.parametrize("kind", ["plan", *artifact.BESIDE])
def test_a_folder_takes_the_place_of_its_own_kind_and_of_an_empty_one(tmp_path, kind) -> None:
    for name in ("empty", "old"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "old", kind)
    for name in ("new", "empty", "old"):
        artifact.write_folder(tmp_path / name, kind, {"of": name}, {})
        assert artifact.read_folder(tmp_path / name, kind)[0]["of"] == name
    (tmp_path / "old" / "thesis.txt").write_text("mine")
    with pytest.raises(GraceError, match=f"holds 'thesis.txt', which is not of a {kind} folder"):
        artifact.write_folder(tmp_path / "old", kind, {}, {})
    assert (tmp_path / "old" / "thesis.txt").read_text() == "mine"


NESTED = [
    (kind, inside)
    for kind, beside in artifact.BESIDE.items()
    for inside in beside
    if beside[inside] != artifact.FILE
]


@pytest.mark.parametrize(("kind", "inside"), NESTED)
def test_a_file_in_a_folder_inside_stays(tmp_path, kind, inside) -> None:
    """People keep notes beside what they describe."""
    (tmp_path / "old").mkdir()
    fill(tmp_path / "old", kind)
    assert artifact.in_the_way(tmp_path / "old", kind) is None
    notes = tmp_path / "old" / inside / "my-notes.txt"
    for make in (notes.write_text, lambda _: notes.mkdir(), notes.symlink_to):
        make("mine")
        with pytest.raises(GraceError, match=f"holds '{inside}/my-notes.txt', which is not of a"):
            artifact.write_folder(tmp_path / "old", kind, {}, {})
        if notes.is_dir():
            notes.rmdir()
        else:
            notes.unlink()


@pytest.mark.parametrize("inside", ["plan", artifact.ARRAYS_FILE])
def test_what_has_the_name_of_ours_and_is_something_else_stays(tmp_path, inside) -> None:
    (tmp_path / "old").mkdir()
    fill(tmp_path / "old", "served")
    (tmp_path / "mine").mkdir()
    (tmp_path / "old" / inside).rename(tmp_path / "away")
    (tmp_path / "old" / inside).symlink_to(tmp_path / "mine")
    assert f"holds '{inside}'" in str(artifact.in_the_way(tmp_path / "old", "served"))


def test_a_demo_of_an_earlier_release_is_replaced_though_it_has_no_document(tmp_path) -> None:
    (tmp_path / "demo").mkdir()
    fill(tmp_path / "demo", "demo")
    for file in ("demo.json", artifact.ARRAYS_FILE):
        (tmp_path / "demo" / file).unlink()
    assert artifact.in_the_way(tmp_path / "demo", "demo") is None
    (tmp_path / "demo" / "plan" / "my-notes.txt").write_text("mine")
    assert "holds 'plan/my-notes.txt'" in str(artifact.in_the_way(tmp_path / "demo", "demo"))
    (tmp_path / "demo" / "plan" / "plan.json").unlink()
    assert artifact.in_the_way(tmp_path / "demo", "demo") == "exists and is not a demo folder"


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_of_one_that_writes(tmp_path):
    hour_ago = time.time() - 3600
    left, fresh = (tmp_path / f".plan.{artifact.PART}{'ab'[n] * 8}" for n in range(2))
    other = tmp_path / ".plan.backup"
    for folder in (left, fresh, other):
        folder.mkdir()
        (folder / "plan.json").write_text("{}")
    with artifact.new_folder(tmp_path / "plan", "plan") as writing:
        for folder in (left, other, writing):
            os.utime(folder, (hour_ago, hour_ago))
        artifact.write_folder(tmp_path / "plan", "plan", {}, {})
        assert not left.exists()
        assert writing.exists()
        assert fresh.exists()
        assert other.exists()
