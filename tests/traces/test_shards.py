"""Shards: N files read by any number of processes are the one file, byte by byte."""

import hashlib

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import ItemNames, integer_lines, read
from grace_torchrec.traces.shards import Thinning, read_shards, shard_paths
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def bytes_of(folder):
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


def save_npz(path, trace):
    np.savez(path, indptr=trace.offsets_B1, indices=trace.ids_L, num_rows=trace.num_items)


def save_text(path, trace):
    rows = np.split(trace.ids_L, trace.offsets_B1[1:-1])
    path.write_text("".join(" ".join(map(str, row.tolist())) + "\n" for row in rows))


@pytest.fixture(params=["npz", "baskets"])
def shards(request, tmp_path):
    """A whole file and the same bags in four shards, one of them tiny."""
    trace = generate(300, 400, pooling=(2, 40))
    save = save_npz if request.param == "npz" else save_text
    suffix = ".npz" if request.param == "npz" else ".dat"
    save(tmp_path / f"whole{suffix}", trace)
    (tmp_path / "parts").mkdir()
    for number, (first, last) in enumerate([(0, 150), (150, 151), (151, 300), (300, 400)]):
        save(tmp_path / "parts" / f"{number}{suffix}", trace.take(np.arange(first, last)))
    return tmp_path / f"whole{suffix}", tmp_path / "parts"


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("thinning", [Thinning(), Thinning(most_ids=12, share=0.6, seed=4)])
def test_shards_give_the_profile_of_the_whole(shards, tmp_path, processes, thinning):
    whole, parts = shards
    one = read_shards([whole], thinning=thinning)
    many = read_shards([parts], thinning=thinning, processes=processes)
    Profile.from_trace("t", one.trace).save(tmp_path / "one")
    Profile.from_trace("t", many.trace).save(tmp_path / "many")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "many")
    counts = ("bags_read", "ids_read", "bags_capped", "ids_dropped", "pairs_dropped")
    assert [getattr(one, n) for n in counts] == [getattr(many, n) for n in counts]
    assert one.bags_read == 400
    assert (one.bags_capped > 0) == (thinning.most_ids is not None)


def test_profiles_of_shards_merge_into_the_profile_of_the_whole(shards, tmp_path):
    whole, parts = shards
    Profile.from_trace("t", read(whole), ("a", "b")).save(tmp_path / "one")
    for path in shard_paths([parts]):
        Profile.from_trace("t", read(path), ("a", "b")).save(tmp_path / f"p{path[-5]}")
    loaded = [Profile.load(folder) for folder in sorted(tmp_path.glob("p?"))]
    Profile.merged(loaded).save(tmp_path / "merged")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "merged")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_trace_on_disk_is_the_one_in_memory(shards, tmp_path, processes):
    (tmp_path / "kept").mkdir()
    memory = read_shards([shards[1]]).trace
    disk = read_shards([shards[1]], processes=processes, folder=tmp_path / "kept").trace
    np.testing.assert_array_equal(memory.ids_L, disk.ids_L)
    np.testing.assert_array_equal(memory.offsets_B1, disk.offsets_B1)
    assert memory.num_items == disk.num_items
    base = disk.ids_L
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    left = sorted(file.name for file in (tmp_path / "kept").iterdir())
    assert left == ["ids_L.npy"]  # nothing of the way there


def test_weights_times_and_marks_survive_processes_and_disk(tmp_path):
    arrays = {
        "indptr": [0, 2, 3],
        "indices": [5, 1, 2],
        "weights": [0.5, 1, 2],
        "time": [1.5, 2],
        "split": np.array([0, 1, 1], np.int8),
        "num_rows": 11,
    }
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", **arrays)
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    (tmp_path / "kept").mkdir()
    for trace in (
        read_shards(files).trace,
        read_shards(files, processes=2).trace,
        read_shards(files, folder=tmp_path / "kept").trace,
    ):
        assert trace.ids_L.tolist() == [5, 1, 2] * 2
        assert trace.weights_L.tolist() == [0.5, 1, 2] * 2
        assert trace.time_B.tolist() == [1.5, 2] * 2
        assert trace.split_L.tolist() == [0, 1, 1] * 2
        assert trace.split_L.dtype == np.int8
        assert trace.num_items == 11


def test_text_is_streamed_in_pieces_that_fit_any_block(shards, monkeypatch, tmp_path):
    whole, parts = shards
    if whole.suffix != ".dat":
        pytest.skip("text only")
    wanted = read(whole)
    monkeypatch.setattr(integer_lines, "BLOCK_BYTES", 64)
    (tmp_path / "kept").mkdir()
    for folder in (None, tmp_path / "kept"):
        again = read_shards([parts], folder=folder).trace
        np.testing.assert_array_equal(wanted.ids_L, again.ids_L)
        np.testing.assert_array_equal(wanted.offsets_B1, again.offsets_B1)


def test_folders_stand_for_their_files_by_name(tmp_path):
    for name in ("b.npz", "a.npz", ".hidden", "_SUCCESS"):
        (tmp_path / name).write_text("")
    (tmp_path / "sub").mkdir()
    assert shard_paths([tmp_path]) == [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    with pytest.raises(GraceError, match="the folder has no files"):
        shard_paths([tmp_path / "sub"])
    with pytest.raises(GraceError, match="there are no files"):
        shard_paths([])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_shard_is_named_with_its_line(tmp_path, processes):
    (tmp_path / "0.dat").write_text("1 2\n")
    (tmp_path / "1.dat").write_text("1 2\n3 x\n")
    with pytest.raises(GraceError, match=r"1\.dat:2: 'x' is not an integer"):
        read_shards([tmp_path], processes=processes)


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_lines_of_all_shards_are_counted_and_the_first_is_told(tmp_path, processes):
    for number, text in enumerate(["1 2\n", "x\n3 4\n5 -6\n", "7\ny\n"]):
        (tmp_path / f"{number}.dat").write_text(text)
    read = read_shards([tmp_path], processes=processes, skip_bad_lines=True)
    assert read.trace.ids_L.tolist() == [1, 2, 3, 4, 7]
    assert (read.bags_read, read.lines_skipped) == (3, 3)
    assert "1.dat:1: 'x' is not an integer" in read.first_skipped
    assert read_shards([tmp_path / "0.dat"], skip_bad_lines=True).first_skipped == ""


def test_items_of_all_shards_are_numbered_in_order(tmp_path):
    (tmp_path / "0.dat").write_text("90 7\n")
    (tmp_path / "1.dat").write_text("8 90\n")
    names = ItemNames()
    read = read_shards([tmp_path], names=names)
    assert (read.trace.ids_L.tolist(), read.trace.num_items) == ([0, 1, 2, 0], 3)
    assert names.names == ["90", "7", "8"]
    with pytest.raises(GraceError, match="numbered by one process"):
        read_shards([tmp_path], names=names, processes=2)
    np.savez(tmp_path / "a.npz", indptr=[0, 1], indices=[1])
    with pytest.raises(GraceError, match="has no lines to skip"):
        read_shards([tmp_path / "a.npz"], skip_bad_lines=True)


def test_a_folder_keeps_one_trace_and_may_keep_an_empty_one(tmp_path):
    np.savez(tmp_path / "a.npz", indptr=[0, 0], indices=np.zeros(0, int))
    np.savez(tmp_path / "b.npz", indptr=[0, 1], indices=[1])
    (tmp_path / "kept").mkdir()
    assert read_shards([tmp_path / "a.npz"], folder=tmp_path / "kept").trace.num_bags == 1
    first = read_shards([tmp_path / "b.npz"], folder=tmp_path / "kept").trace
    with pytest.raises(GraceError, match=r"ids_L\.npy: exists already"):
        read_shards([tmp_path / "b.npz"] * 2, folder=tmp_path / "kept")
    assert first.ids_L.tolist() == [1]


def test_shards_of_different_kinds_and_bad_arguments_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", indptr=[0, 1], indices=[1])
    np.savez(tmp_path / "b.npz", indptr=[0, 1], indices=[1], weights=[2.0])
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    (tmp_path / "kept").mkdir()
    for folder in (None, tmp_path / "kept"):
        with pytest.raises(GraceError, match="some traces have weights"):
            read_shards(files, folder=folder)
    with pytest.raises(GraceError, match="processes is 0"):
        read_shards(files, processes=0)
    with pytest.raises(GraceError, match="cannot be written"):
        read_shards(files[:1], folder=tmp_path / "none")
    for wrong in ({"most_ids": 0}, {"share": 0.0}, {"share": 1.5}):
        with pytest.raises(GraceError, match="shards: "):
            Thinning(**wrong)


def test_profiles_that_do_not_fit_are_refused():
    bags = Trace.from_bags([[1]])
    with pytest.raises(GraceError, match="no profiles"):
        Profile.merged([])
    with pytest.raises(GraceError, match="is read by a and by b"):
        Profile.merged(
            [Profile.from_trace("t", bags, ("a",)), Profile.from_trace("t", bags, ("b",))]
        )
    weighted = Trace(bags.offsets_B1, bags.ids_L, 0, np.ones(1, np.float32))
    with pytest.raises(GraceError, match="table t: some traces have weights"):
        Profile.merged([Profile.from_trace("t", bags), Profile.from_trace("t", weighted)])
    both = Profile.merged([Profile.from_trace("t", bags), Profile.from_trace("u", bags)])
    assert list(both.tables) == ["t", "u"]
