"""What a recorder writes is a profile, whole at any time, and enough to go on."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec import artifact
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.recorder_files import HALF_LIVES
from grace_torchrec.traces.snapshots import Snapshots


def recorder_of(model: nn.Module, **options) -> TraceRecorder:
    """A recorder that looks at every batch, unless it is told otherwise."""
    return TraceRecorder(model, **{"max_overhead": None, **options})


def model_of(rows: int = 50, name: str = "t_item", is_weighted: bool = False) -> nn.Module:
    table = EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=4, feature_names=["item"]
    )
    return nn.Sequential(EmbeddingBagCollection(tables=[table], is_weighted=is_weighted))


def pairs(first: int, count: int) -> KeyedJaggedTensor:
    """Bags of two items; bag k holds k % 50 and the next."""
    at = torch.arange(first, first + count) % 49
    return KeyedJaggedTensor(
        ["item"], torch.stack([at, at + 1], 1).flatten(), lengths=torch.full((count,), 2)
    )


def held_keys(recorder: TraceRecorder) -> list[float]:
    return sorted(-entry.minus_key for entry in recorder._sample.reservoirs["t_item"].entries)


@pytest.mark.parametrize("options", [{}, {"half_life_bags": 30.0}], ids=["equal", "decayed"])
def test_a_resumed_recorder_goes_on_where_the_saved_one_stood(tmp_path, options) -> None:
    model = model_of()
    recorder = recorder_of(model, max_bags=60, min_support=1, **options)
    for first in range(0, 600, 20):
        recorder.observe(pairs(first, 20))
    recorder.save(tmp_path / "p")
    again = TraceRecorder.resume(
        tmp_path / "p", model, max_bags=60, min_support=1, max_overhead=None, **options
    )
    assert held_keys(again) == held_keys(recorder)
    assert again.stats.bags_seen == recorder.stats.bags_seen == 600
    assert again.profile().fingerprint() == recorder.profile().fingerprint()
    again.observe(pairs(0, 200))
    mine = again._sample.reservoirs["t_item"]
    assert len(mine.entries) == 60
    assert (
        mine.limit <= recorder._sample.reservoirs["t_item"].limit or options
    )  # keys are rescaled in decay


HALVES = [{}, {"half_life_bags": 3.0}, {"half_life_bags": 30.0}, {"half_life_s": 3.0}]


@pytest.mark.parametrize("saved", HALVES, ids=str)
@pytest.mark.parametrize("asked", HALVES, ids=str)
def test_another_half_life_is_refused_and_the_same_records_on(tmp_path, saved, asked) -> None:
    model = model_of()
    recorder = recorder_of(model, max_bags=60, min_support=1, **saved)
    for first in range(0, 600, 20):
        recorder.observe(pairs(first, 20))
    recorder.save(tmp_path / "p")
    if saved != asked:
        with pytest.raises(grace.GraceError, match=r"half-lives .* record anew"):
            TraceRecorder.resume(tmp_path / "p", model, **asked)
        return
    again = TraceRecorder.resume(
        tmp_path / "p", model, max_bags=60, min_support=1, max_overhead=None, **asked
    )
    before = held_keys(again)
    again.observe(pairs(0, 2000))
    assert held_keys(again) != before


@pytest.mark.parametrize("saved", HALVES[:2], ids=str)
@pytest.mark.parametrize("asked", HALVES[:2], ids=str)
def test_a_folder_that_tells_no_half_life_goes_on_without_one(tmp_path, saved, asked) -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=1, **saved)
    for first in range(0, 600, 20):
        recorder.observe(pairs(first, 20))
    recorder.save(tmp_path / "p")
    document, arrays = artifact.read_folder(tmp_path / "p", "profile")
    del document[HALF_LIVES]
    artifact.write_folder(tmp_path / "p", "profile", document, arrays)
    if saved or asked:
        with pytest.raises(grace.GraceError, match=r"half-lives .* record anew"):
            TraceRecorder.resume(tmp_path / "p", model, **asked)
    else:
        assert TraceRecorder.resume(tmp_path / "p", model).stats.bags_seen == 600


def test_the_next_snapshot_of_a_live_writer_is_not_mixed_in(tmp_path, monkeypatch) -> None:
    model = model_of()
    before, after = recorder_of(model, min_support=1), recorder_of(model, min_support=1, seed=2)
    before.observe(pairs(0, 20))
    after.observe(pairs(20, 20))
    before.save(tmp_path / "p")
    read = artifact.read_folder

    def read_and_be_overtaken(*arguments):
        found = read(*arguments)
        after.save(tmp_path / "p")
        return found

    monkeypatch.setattr(artifact, "read_folder", read_and_be_overtaken)
    again = TraceRecorder.resume(tmp_path / "p", model, min_support=1)
    assert held_keys(again) == held_keys(before)
    assert again.profile().fingerprint() == before.profile().fingerprint()


def test_profiles_of_ranks_merge(tmp_path) -> None:
    model = model_of()
    for rank in (0, 1):
        recorder = recorder_of(model, min_support=1)
        recorder.observe(pairs(30 * rank, 30))
        recorder.save(tmp_path / f"rank{rank}")
    merged = grace.Profile.merged(grace.Profile.load(tmp_path / f"rank{rank}") for rank in (0, 1))
    whole = recorder_of(model, min_support=1)
    whole.observe(pairs(0, 60))
    assert merged.fingerprint() == whole.profile().fingerprint()


@pytest.mark.parametrize(
    "other", [model_of(rows=60), model_of(name="t_shop"), model_of(is_weighted=True)],
    ids=["rows", "name", "weights"],
)  # fmt: skip
def test_another_model_is_refused(tmp_path, other) -> None:
    recorder = recorder_of(model_of())
    recorder.observe(pairs(0, 200))
    recorder.save(tmp_path / "p")
    with pytest.raises(grace.PlanMismatch, match="t_item"):
        TraceRecorder.resume(tmp_path / "p", other)


def test_a_profile_that_no_recorder_wrote_is_refused(tmp_path) -> None:
    grace.profile([pairs(0, 20)], model_of()).save(tmp_path / "p")
    with pytest.raises(grace.GraceError, match="no recorder wrote"):
        TraceRecorder.resume(tmp_path / "p", model_of())
    with pytest.raises(grace.GraceError, match="profile"):
        TraceRecorder.resume(tmp_path / "nothing", model_of())


def test_snapshots_are_taken_by_themselves_and_a_last_one_at_the_end(tmp_path) -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=1).snapshots(tmp_path / "p", interval_s=0.01)
    recorder.observe(pairs(0, 40))
    deadline = time.monotonic() + 30
    while recorder.stats.snapshots < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.observe(pairs(40, 5))
    with pytest.raises(grace.GraceError, match="taken already"):
        recorder.snapshots(tmp_path / "q")
    recorder.close()
    taken = recorder.stats.snapshots
    assert taken >= 2
    saved = grace.Profile.load(tmp_path / "p")
    assert saved.fingerprint() == recorder.profile().fingerprint()
    assert saved.tables["t_item"].trace.num_bags == 45
    recorder.close()
    assert recorder.stats.snapshots == taken
    recorder.snapshots(tmp_path / "q").close()  # what was closed may begin again
    assert recorder.stats.snapshots == taken + 1
    assert grace.Profile.load(tmp_path / "q").fingerprint() == saved.fingerprint()
    with pytest.raises(grace.GraceError, match="interval_s"):
        recorder_of(model).snapshots(tmp_path / "q", interval_s=0)


def test_a_snapshot_that_fails_is_told_and_tried_again(tmp_path) -> None:
    turns = []

    def save(path):
        turns.append(path)
        if len(turns) < 3:
            raise OSError("disk full")

    snapshots = Snapshots(save, tmp_path / "p", 0.005)
    deadline = time.monotonic() + 30
    while not snapshots.written and time.monotonic() < deadline:
        time.sleep(0.005)
    assert snapshots.written
    assert snapshots.error == ""
    snapshots.close()


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("most_bytes", [0, 100, 4096])
def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path, most_bytes: int) -> None:
    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(pairs(0, 10))
    recorder.save(tmp_path / "p")
    recorder.observe(pairs(0, 2000))
    with (
        full_disk(most_bytes),
        pytest.raises(grace.GraceError, match=r"p: cannot be written: .*too large"),
    ):
        recorder.save(tmp_path / "p")
    assert TraceRecorder.resume(tmp_path / "p", model_of()).stats.bags_seen == 10
    assert [found.name for found in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("own.csv", "exists and is not a profile folder"),
        ("own.csv/p", "own.csv is no folder"),
        ("own.csv/a/p", "own.csv is no folder"),
        ("others", "exists and is not a profile folder"),
        ("link", "is a link"),
    ],
)
def test_a_place_that_no_snapshot_can_take_is_refused_at_the_call(tmp_path, place, message) -> None:
    (tmp_path / "own.csv").write_text("1,2")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "plan.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    recorder = recorder_of(model_of(), min_support=1)
    with pytest.raises(grace.GraceError, match=f"{place}: .*{message}"):
        recorder.snapshots(tmp_path / place)
    recorder.snapshots(tmp_path / "new" / "p").close()  # and nothing of it is left
    assert (tmp_path / "own.csv").read_text() == "1,2"


def lost_place(tmp_path, interval_s: float) -> TraceRecorder:
    """A recorder whose snapshots have nowhere to go: a file came into the way meanwhile."""
    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(pairs(0, 10))
    recorder.snapshots(tmp_path / "d" / "p", interval_s=interval_s)
    (tmp_path / "d").write_text("")
    return recorder


def test_a_last_snapshot_that_fails_is_raised_once_and_the_sample_stays(tmp_path) -> None:
    recorder = lost_place(tmp_path, 60)
    with pytest.raises(grace.GraceError, match=r"last one was not written .*d is no folder"):
        recorder.close()
    assert recorder.stats.snapshots == 0
    assert "cannot be written" in recorder.stats.last_error
    recorder.close()
    recorder.save(tmp_path / "p")
    assert TraceRecorder.resume(tmp_path / "p", model_of()).stats.bags_seen == 10


def test_the_first_snapshot_that_fails_is_told_at_once(tmp_path, caplog) -> None:
    recorder = lost_place(tmp_path, 0.3)
    deadline = time.monotonic() + 30
    while not recorder.stats.last_error and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "cannot be written" in recorder.stats.last_error
    with pytest.raises(ZeroDivisionError), recorder:  # the error of the block is what is raised
        raise ZeroDivisionError
    warned = [record.message for record in caplog.records if "one failed" in record.message]
    assert len(warned) == 1
    assert "cannot be written" in warned[0]


def test_what_a_killed_writer_left_is_cleared_up(tmp_path) -> None:
    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(pairs(0, 10))
    recorder.save(tmp_path / "p")
    left = tmp_path / ".p.grace-part-abc12_x8"
    left.mkdir()
    (left / "half").write_text("")
    names = [".p.settings", ".p.old.settings", ".q.grace-part-abc12_x8", ".p.grace-part-ABC"]
    kept = [tmp_path / name for name in names]
    for folder in kept:
        folder.mkdir()
    assert artifact.recover(tmp_path / "p") == 1
    assert not left.exists()
    assert all(folder.is_dir() for folder in kept)


def test_a_reader_puts_the_old_folder_back_and_removes_nothing(tmp_path, monkeypatch) -> None:
    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(pairs(0, 10))
    recorder.save(tmp_path / "p")

    def meanwhile(aside, target):
        """A reader comes while a writer is between two renames: the old folder is aside."""
        target.rename(tmp_path / ".p.grace-old-abc12_x8")
        again = TraceRecorder.resume(tmp_path / "p", model_of(), min_support=1)
        assert again.stats.bags_held == 10
        assert (aside / "profile.json").is_file()
        swap_in(aside, target)

    swap_in = artifact._swap_in
    monkeypatch.setattr(artifact, "_swap_in", meanwhile)
    recorder.observe(pairs(0, 5))
    recorder.save(tmp_path / "p")
    again = TraceRecorder.resume(tmp_path / "p", model_of(), min_support=1)
    assert again.profile().fingerprint() == recorder.profile().fingerprint()


@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])
def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path, monkeypatch, can_exchange) -> None:
    if not can_exchange:
        monkeypatch.setattr(artifact, "_exchange", lambda one, other: False)
    for count in (10, 20):
        recorder = recorder_of(model_of(), min_support=1)
        recorder.observe(pairs(0, count))
        recorder.save(tmp_path / "p")
    assert grace.Profile.load(tmp_path / "p").tables["t_item"].trace.num_bags == 20
    assert [found.name for found in tmp_path.iterdir()] == ["p"]
