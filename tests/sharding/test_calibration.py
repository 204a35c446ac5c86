"""Calibration: rates are measured where they can be, and what is missing is said."""

import pytest
import torch

from grace_sharding.calibration import calibrate
from grace_sharding.memory_files import load_memory
from grace_sharding.memory_tiers import MemoryModelError

SMALL = 1 << 22


@pytest.fixture(scope="module")
def found():
    return calibrate(256, SMALL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="other: this machine has a GPU")
def test_a_machine_without_gpu_measures_two_numbers_and_says_what_is_missing(found):
    assert set(found.bytes_per_s) == {"host_copy", "host_gather"}
    assert found.memory.hbm is None
    assert any("no GPU" in reason for reason in found.unmeasured)


def test_rates_are_rates_and_rows_are_gathered_at_the_measured_one(found):
    assert all(rate > 1e6 for rate in found.bytes_per_s.values())
    assert found.memory.host.bytes_per_s <= found.bytes_per_s["host_gather"]
    assert found.memory.host.num_bytes > 0


def test_what_is_saved_is_a_memory_model_for_plans(found, tmp_path):
    found.save(tmp_path / "here.json")
    assert load_memory(tmp_path / "here.json") == found.memory


@pytest.mark.parametrize(("row", "table"), [(0, SMALL), (6, SMALL), (1 << 21, 1 << 30), (256, 100)])
def test_sizes_that_make_no_sense_are_refused(row, table):
    with pytest.raises(MemoryModelError, match="calibrate: "):
        calibrate(row, table)
