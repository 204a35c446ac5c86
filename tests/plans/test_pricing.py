"""Pricing: seconds follow from the reads, the sectors and the slower memory."""

import numpy as np
import pytest

from grace_torchrec.plans.candidates import find_sums
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.pricing import Busy, Candidate, place_candidates, price
from grace_torchrec.sums.count_reads import count_reads

QUICK = PlanOptions(size_limits=(4,))
SPLIT = 30_000  # bytes of HBM that hold a part of the table


@pytest.fixture(scope="module")
def choice(grouped):
    return find_sums(grouped(), QUICK)


def test_times_of_two_tables_add_up_memory_by_memory():
    both = Busy(1.0, 2.0) + Busy(4.0, 1.0)
    assert (both.hbm_s, both.host_s, both.time_s) == (5.0, 3.0, 5.0)


def test_each_mode_reads_what_serving_would_read(spec_of, choice):
    for part, sums in (
        ("fit", choice.held_sums),
        ("validation", choice.held_sums),
        ("all", choice.sums),
    ):
        trace = getattr(choice.bags, part)
        full = Candidate(spec_of(), choice, "sums", "").reads(part)
        assert full.rows_after == count_reads(trace, sums).rows_after
        for mode in ("hot", "stock"):
            plain = Candidate(spec_of(), choice, mode, "").reads(part)
            assert np.array_equal(plain.plain_reads_N, trace.counts())
            assert plain.rows_after == plain.rows_before == trace.num_ids


@pytest.mark.parametrize("mode", ["sums", "hot", "stock"])
def test_bytes_are_rows_plus_a_sector_for_each_look_up_of_metadata(
    spec_of, choice, two_memories, mode
):
    candidate = Candidate(spec_of(), choice, mode, "")
    memory = two_memories(SPLIT)
    (placement,) = place_candidates([candidate], memory, "fit")
    busy = price(candidate, placement, memory)
    reads = candidate.reads("validation")
    rows = placement.reads_by_tier(reads.plain_reads_N, reads.stored_reads_R)
    sectors = {
        "sums": reads.rows_before + reads.plain_reads_N.sum(),
        "hot": reads.rows_before,
        "stock": 0,
    }
    assert busy.hbm_s == pytest.approx((rows["hbm"] * 256 + sectors[mode] * 32) / 20e9)
    assert busy.host_s == pytest.approx(rows["host"] * 256 / 1e9)


def test_a_stock_table_is_split_only_by_a_software_cache(spec_of, choice, two_memories):
    candidate = Candidate(spec_of(), choice, "stock", "")
    (whole,) = place_candidates([candidate], two_memories(SPLIT), "fit")
    (cached,) = place_candidates([candidate], two_memories(SPLIT, uvm="cached"), "fit")
    assert (whole.hbm.rows, whole.hot_items.size) == (0, 0)
    assert cached.hot_items.size > 0
