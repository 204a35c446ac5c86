"""A disk that is full ends each writer with one line, and what was there before stays whole."""

import resource
from pathlib import Path

import pytest

from grace_sharding.memory_files import save_memory
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.cli import schedule
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import CostFile, OpStats
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import ItemNames
from grace_torchrec.traces.synthetic import generate

ROOM = 50  # bytes that a file may have


def costs(place: Path) -> None:
    graph = OpGraph.from_json({"name": "none" * ROOM, "ops": []})
    CostFile(graph, OpStats.of(graph, [], "test", "cpu")).save(place)


def names(place: Path) -> None:
    made = ItemNames()
    made.names = ["milk"] * ROOM
    made.save(place)


WRITERS = {
    "memory model": lambda place: save_memory(MemoryModel.named("a40"), place),
    "profile": Profile.from_trace("t", generate(200, 30)).save,
    "cost file": costs,
    "names": names,
    "drawing": lambda place: schedule._write(place, "<svg>" * ROOM),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, what):
    write = WRITERS[what]
    write(tmp_path / "place")
    (made,) = tmp_path.iterdir()
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        with pytest.raises(GraceError, match="cannot be written") as error:
            write(tmp_path / "place")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(made) in str(error.value)
    assert list(tmp_path.iterdir()) == [made]
    after = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
