"""Memory tiers: rates of named machines, and a time that is a maximum."""

import json
import math
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_tiers import (
    MemoryModel,
    MemoryModelError,
    Tier,
    machine_names,
)

HBM, HOST = Tier("hbm", 1000, 100.0), Tier("host", 9000, 10.0)
NAMES = ("a40", "a100", "h100", "h200", "gh200", "cpu")


def test_all_promised_machines_are_known_and_say_where_their_numbers_come_from():
    assert set(machine_names()) == set(NAMES)
    sheets = json.loads(resources.files("grace_sharding").joinpath("machines.json").read_text())
    for name in NAMES:
        for tier in MemoryModel.named(name).tiers:
            assert sheets[name][tier.name]["rate"] in ("peak", "usable")
            assert len(sheets[name][tier.name]["source"]) > 20


@pytest.mark.parametrize(
    ("name", "hbm_gb", "hbm_rate", "host_rate"),
    [
        ("a40", 48, 696, 25),
        ("a100", 80, 2039, 25),
        ("h100", 80, 3350, 50),
        ("h200", 141, 4800, 50),
        ("gh200", 96, 4000, 450),
    ],
)
def test_named_machines_have_the_numbers_of_their_data_sheets(name, hbm_gb, hbm_rate, host_rate):
    memory = MemoryModel.named(name)
    assert memory.hbm == Tier("hbm", hbm_gb * 10**9, hbm_rate * 10**9)
    assert memory.host.bytes_per_s == host_rate * 10**9
    assert memory.beta == pytest.approx(host_rate / hbm_rate)


def test_a_cpu_has_one_memory():
    memory = MemoryModel.named("cpu")
    assert memory.hbm is None
    assert [tier.name for tier in memory.tiers] == ["host"]
    assert memory.beta == 1.0
    with pytest.raises(MemoryModelError, match="no HBM"):
        MemoryModel.named("cpu", hbm_bytes=0)


def test_the_order_in_which_tiers_are_given_says_nothing():
    assert MemoryModel("m", (HOST, HBM)) == MemoryModel("m", (HBM, HOST))
    assert MemoryModel("m", (HOST, HBM)).tiers == (HBM, HOST)


def test_given_bytes_replace_those_of_the_data_sheet_and_zero_is_allowed():
    memory = MemoryModel.named("h200", hbm_bytes=0, host_bytes=7)
    assert (memory.hbm.num_bytes, memory.host.num_bytes) == (0, 7)
    assert memory.hbm.bytes_per_s == MemoryModel.named("h200").hbm.bytes_per_s


def test_an_unknown_machine_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"h1000.*a40, a100, h100, h200, gh200, cpu"):
        MemoryModel.named("h1000")


@given(st.floats(0, 1e15), st.floats(0, 1e15))
def test_a_request_takes_as_long_as_its_slower_memory_never_the_sum(hbm_bytes, host_bytes):
    memory = MemoryModel("m", (HBM, HOST))
    time = memory.time_s({"hbm": hbm_bytes, "host": host_bytes})
    assert time == max(hbm_bytes / 100, host_bytes / 10)
    assert memory.time_s({"hbm": hbm_bytes}) == hbm_bytes / 100
    assert memory.time_s({}) == 0.0


def test_a_time_is_refused_for_a_memory_that_is_not_there():
    with pytest.raises(MemoryModelError, match="no tier 'hbm'"):
        MemoryModel("m", (HOST,)).time_s({"hbm": 1})
    for bad in (-1, math.nan, math.inf):
        with pytest.raises(MemoryModelError, match="cannot read"):
            MemoryModel("m", (HOST,)).time_s({"host": bad})


def test_reads_come_in_whole_sectors():
    memory = MemoryModel("m", (HOST,), sector_bytes=32)
    assert [memory.read_bytes(n) for n in (1, 32, 33, 512)] == [32, 32, 64, 512]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Tier("ssd", 1, 1.0),
        lambda: Tier("hbm", -1, 1.0),
        lambda: Tier("hbm", True, 1.0),
        lambda: Tier("hbm", 1.5, 1.0),
        lambda: Tier("hbm", 1, 0.0),
        lambda: Tier("hbm", 1, math.nan),
        lambda: Tier("hbm", 1, math.inf),
        lambda: Tier("hbm", 1, "1"),
        lambda: MemoryModel("m", ()),
        lambda: MemoryModel("m", (HBM,)),
        lambda: MemoryModel("m", (HOST, HOST)),
        lambda: MemoryModel("m", (HBM, HOST, HOST)),
        lambda: MemoryModel("m", [HBM, HOST]),
        lambda: MemoryModel("m", (HOST,), uvm="pinned"),
        lambda: MemoryModel("m", (HOST,), sector_bytes=0),
        lambda: MemoryModel("m", (HOST,), lookup_costs={"rewrite_ns": 1}),
        lambda: MemoryModel("m", (HBM, HOST), lookup_costs=LookupCosts(1, 1, 1, 1, 1)),
    ],
)
def test_nonsense_is_refused_when_it_is_made(bad):
    with pytest.raises(MemoryModelError):
        bad()


def test_the_machine_file_holds_bytes_rates_and_a_source_for_every_tier():
    sheets = json.loads(resources.files("grace_sharding").joinpath("machines.json").read_text())
    for sheet in sheets.values():
        device = sheet.pop("device", None)  # the caches of a CPU depend on the server
        assert (device is None) == ("hbm" not in sheet)
        assert device is None or set(device) == {"cache_bytes", "launch_s", "source"}
        for tier in sheet.values():
            assert set(tier) == {"num_bytes", "bytes_per_s", "rate", "source"}
            assert tier["rate"] in ("peak", "usable")
