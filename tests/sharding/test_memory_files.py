"""Memory files: what is saved is what is loaded, and a stranger's file is one clear error."""

import json

import pytest

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_files import MOST_BYTES, load_memory, memory_named, save_memory
from grace_sharding.memory_tiers import MemoryModel, MemoryModelError, Tier

GOOD = MemoryModel("m", (Tier("hbm", 100, 9.5), Tier("host", 900, 1.5)), "cached", 64)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "memory.json"
    save_memory(GOOD, path, {"by": "hand"})
    return path


def test_a_saved_model_is_loaded_as_it_was(saved):
    assert load_memory(saved) == GOOD
    assert json.loads(saved.read_text())["notes"] == {"by": "hand"}


def test_a_file_without_a_cache_and_a_launch_does_not_know_them(saved):
    """Files of earlier releases, and those that people write."""
    document = json.loads(saved.read_text())
    del document["cache_bytes"], document["launch_s"]
    saved.write_text(json.dumps(document))
    assert (load_memory(saved).cache_bytes, load_memory(saved).launch_s) == (None, None)
    saved.write_text(json.dumps({**document, "cache_bytes": 6_291_456, "launch_s": 3e-6}))
    assert (load_memory(saved).cache_bytes, load_memory(saved).launch_s) == (6_291_456, 3e-6)
    for wrong in ({"cache_bytes": 0}, {"cache_bytes": 1.5}, {"launch_s": 0}, {"launch_s": "x"}):
        saved.write_text(json.dumps({**document, **wrong}))
        with pytest.raises(MemoryModelError, match=f"{next(iter(wrong))} must be"):
            load_memory(saved)


def test_costs_of_lookups_are_of_a_cpu_and_may_be_missing(tmp_path):
    costs = LookupCosts(0.01, 0.03, 0.2, 7.0, 0.7)
    cpu, path = MemoryModel("c", (Tier("host", 9, 1.0),), lookup_costs=costs), tmp_path / "c.json"
    save_memory(cpu, path)
    assert load_memory(path) == cpu
    document = json.loads(path.read_text())
    for wrong, said in (
        ({**document["lookup_costs"], "rewrite_ns": 0}, "lookup_costs: rewrite_ns must be"),
        ({"rewrite_ns": 1}, "lacks or mistypes"),
        ([1, 2, 3, 4, 5], "lacks or mistypes"),
        ("much", "lacks or mistypes"),
    ):
        change(path, lookup_costs=wrong)
        with pytest.raises(MemoryModelError, match=rf"c\.json: {said}"):
            load_memory(path)
    for absent in (None, ...):
        document.pop("lookup_costs", None)
        path.write_text(
            json.dumps(document if absent is ... else {**document, "lookup_costs": None})
        )
        assert load_memory(path) == MemoryModel("c", cpu.tiers)


def test_a_file_or_a_known_machine_may_be_named(saved):
    assert memory_named(str(saved)) == GOOD
    assert memory_named(str(saved), hbm_bytes=7).hbm.num_bytes == 7
    small = memory_named(str(saved), host_bytes=0)
    assert [tier.num_bytes for tier in small.tiers] == [GOOD.hbm.num_bytes, 0]
    assert memory_named("h200", host_bytes=5) == MemoryModel.named("h200", host_bytes=5)
    assert memory_named("h200") == MemoryModel.named("h200")
    assert memory_named("h200", hbm_bytes=5) == MemoryModel.named("h200", hbm_bytes=5)
    with pytest.raises(MemoryModelError, match="no file and no known machine; use one of a40"):
        memory_named("h2000")


def test_hbm_bytes_need_hbm(tmp_path):
    path = tmp_path / "cpu.json"
    save_memory(MemoryModel("c", (Tier("host", 9, 1.0),)), path)
    with pytest.raises(MemoryModelError, match="has no HBM"):
        memory_named(str(path), hbm_bytes=3)


def change(path, **entries):
    document = json.loads(path.read_text())
    document.update(entries)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "entries",
    [
        {"schema": 2},
        {"tiers": None},
        {"tiers": [3]},
        {"tiers": [{"name": "hbm"}]},
        {"tiers": [{"name": "host", "num_bytes": -1, "bytes_per_s": 1.0}]},
        {"tiers": [{"name": "host", "num_bytes": 1, "bytes_per_s": float("nan")}]},
        {"tiers": [{"name": "host", "num_bytes": 1, "bytes_per_s": 1.0, "extra": 1}]},
        {"tiers": []},
        {"uvm": "other"},
        {"uvm": []},
        {"sector_bytes": 0},
        {"machine": 7},
    ],
)
def test_a_changed_file_is_one_error_that_names_it(saved, entries):
    change(saved, **entries)
    with pytest.raises(MemoryModelError, match=r"memory\.json: ") as error:
        load_memory(saved)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_file_that_is_no_model_is_one_error(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(MemoryModelError, match=r"odd\.json"):
        load_memory(path)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    path.write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(MemoryModelError, match="is no memory model"):
        load_memory(path)


def test_a_missing_file_and_a_missing_folder_say_so(tmp_path):
    with pytest.raises(MemoryModelError, match="cannot be read"):
        load_memory(tmp_path / "none.json")
    with pytest.raises(MemoryModelError, match="cannot be written"):
        save_memory(GOOD, tmp_path / "no" / "folder.json")
