"""``grace-torchrec calibrate``: one JSON object, a file for plans, and lines for people."""

import json
import re

import pytest
from click.testing import CliRunner

from grace_sharding import calibration
from grace_sharding.memory_files import load_memory
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.calibration.machine import calibrate
from grace_torchrec.cli.calibrate import _busy, _lines, calibrate_command


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(calibrate, "__defaults__", (256, 1 << 22))


def test_it_prints_one_json_object_and_writes_the_file(tmp_path):
    out = tmp_path / "m.json"
    result = CliRunner().invoke(calibrate_command, ["--json", "-o", str(out)])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["bytes_per_s"]["host_gather"] > 0
    assert {"spread", "unsteady", "load", "cores", "busy"} <= document.keys()
    assert document["busy"] == (document["busy_because"] is not None)
    assert set(document["spread"]) == set(document["bytes_per_s"])
    assert json.loads(out.read_text())["notes"]["spread"] == document["spread"]
    assert load_memory(out).host.bytes_per_s == document["memory"]["tiers"][-1]["bytes_per_s"]


def test_people_read_rates_and_what_was_not_measured():
    result = CliRunner().invoke(calibrate_command, [])
    assert "host_gather" in result.stdout
    assert "not measured:" in result.stdout
    assert "load before" in result.stdout
    assert "one core, ns an id: rows of 256 bytes" in result.stdout
    assert re.search(r"host_copy +[\d.]+ GB/s  \([\d.]+ to [\d.]+\)", result.stdout)


@pytest.mark.parametrize(
    ("unsteady", "load", "told"),
    [
        ((), 3.0, ""),
        ((), 3.1, "3.1 processes wanted its 2 cores"),
        ((), None, ""),
        (("host_copy",), 9.0, "rounds of host_copy differ too much"),
    ],
)
def test_a_busy_machine_is_told_by_its_rounds_or_by_its_load(unsteady, load, told):
    memory = MemoryModel.named("cpu")
    found = calibration.Calibration(memory, {}, 256, (), {}, unsteady, load, 2)
    shown = [line for line in _lines(found, None) if "busy" in line]
    assert _busy(found)["busy"] == bool(told)  # as --json has it
    assert (len(shown), told in "".join(shown)) == (bool(told), True)
