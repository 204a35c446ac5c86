"""Calibration of a machine: lookups are timed where a CPU does them, else it is said why not."""

import sys
from dataclasses import replace

import pytest
import torch

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_files import load_memory
from grace_sharding.memory_tiers import MemoryModel, MemoryModelError
from grace_torchrec.calibration import lookup_costs, machine
from grace_torchrec.calibration.machine import calibrate
from grace_torchrec.errors import GraceError

SMALL = 1 << 22
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="other: this machine has a GPU")


@on_a_cpu
def test_lookups_of_a_cpu_are_timed_and_reach_the_file(tmp_path):
    found = calibrate(256, SMALL)
    assert isinstance(found.memory.lookup_costs, LookupCosts)
    assert found.lookup_ns["near_ours"] > 0
    found.save(tmp_path / "here.json")
    assert load_memory(tmp_path / "here.json") == found.memory


@on_a_cpu
def test_what_cannot_be_timed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "grace_torchrec.calibration.lookup_costs", None)
    found = calibrate(256, SMALL)
    assert found.memory.lookup_costs is None
    assert any(reason.startswith("costs of lookups: ") for reason in found.unmeasured)


@on_a_cpu
def test_where_memory_is_short_lookups_are_not_timed(monkeypatch):
    found = machine.calibrate_memories(256, SMALL)
    for free, timed in ((3 * SMALL - 1, False), (3 * SMALL, True)):
        tiers = (replace(found.memory.host, num_bytes=free),)
        small = replace(found, memory=replace(found.memory, tiers=tiers))
        monkeypatch.setattr(machine, "calibrate_memories", lambda *sizes, small=small: small)
        told = calibrate(256, SMALL)
        assert (told.memory.lookup_costs is not None) == timed
        assert timed or told.unmeasured[-1].startswith("costs of lookups: they need 12,582,912 by")


@on_a_cpu
def test_a_lookup_that_is_wrong_is_said(monkeypatch):
    def wrong(table_bytes):
        raise GraceError("differs")

    monkeypatch.setattr(lookup_costs, "measure_lookups", wrong)
    assert calibrate(256, SMALL).unmeasured[-1] == "costs of lookups: differs"


@on_a_cpu
@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("can't allocate memory")])
def test_where_torch_has_no_room_the_rates_are_kept(monkeypatch, error):
    def no_room(table_bytes):
        raise error

    monkeypatch.setattr(lookup_costs, "measure_lookups", no_room)
    found = calibrate(256, SMALL)
    assert found.bytes_per_s
    assert found.unmeasured[-1] == f"costs of lookups: {error}"


@on_a_cpu
def test_tables_that_a_cache_holds_tell_nothing_of_memory(monkeypatch):
    for cache_bytes, told in ((SMALL - 1, False), (SMALL, True), (None, False)):
        found = machine.calibrate_memories(256, SMALL)
        found = replace(found, memory=replace(found.memory, cache_bytes=cache_bytes))
        monkeypatch.setattr(machine, "calibrate_memories", lambda *sizes, found=found: found)
        reasons = calibrate(256, SMALL).unmeasured
        assert any(reason.startswith("rows far from the cache") for reason in reasons) == told
        monkeypatch.undo()


def test_a_gpu_does_its_own_lookups(monkeypatch):
    memory = MemoryModel.named("h200")
    found = replace(machine.calibrate_memories(256, SMALL), memory=memory)
    monkeypatch.setattr(machine, "calibrate_memories", lambda *sizes: found)
    monkeypatch.setattr(lookup_costs, "measure_lookups", lambda *sizes: pytest.fail("timed"))
    assert calibrate(256, SMALL) is found


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(MemoryModelError, match="calibrate: "):
        calibrate(6, SMALL)
