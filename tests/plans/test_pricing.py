"""Pricing: what each way reads follows from the reads, the sectors and where rows are."""

import numpy as np
import pytest

from grace_sharding.joint import decide
from grace_sharding.variants import GROUPS
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.pricing import Busy, priced, variants_of
from grace_torchrec.sums.count_reads import count_reads

QUICK = PlanOptions(methods=("grace",), size_limits=(4,))
SPLIT = 30_000  # bytes of HBM that hold a part of the table
ROW, SECTOR = 256, 32


@pytest.fixture(scope="module")
def choice(grouped):
    return judge_all(split_validation(grouped()), QUICK)


@pytest.fixture(scope="module")
def ways(spec_of, choice, two_memories):
    """Return a function from a machine to (way, variant) pairs of a table with one set of sums."""
    plain, stored = priced(choice.bags, None), priced(choice.bags, choice.held_sums)

    def make(memory, ahead=False):
        variants, meant = variants_of(spec_of(), plain, [stored], memory, ahead)
        return list(zip(meant, variants, strict=True))

    return make


def rows_of(rungs):
    return rungs.rows_K.sum(), rungs.reads_GK.sum()


def test_times_of_two_tables_add_up_memory_by_memory():
    both = Busy(1.0, 2.0) + Busy(4.0, 1.0)
    assert (both.hbm_s, both.host_s, both.time_s) == (5.0, 3.0, 5.0)


def test_rungs_hold_every_row_and_every_read_of_the_validation_bags(choice):
    reads = count_reads(choice.bags.validation, choice.held_sums)
    found = priced(choice.bags, choice.held_sums)
    assert rows_of(found.plain) == (400, pytest.approx(reads.plain_reads_N.sum()))
    assert rows_of(found.stored) == (choice.held_sums.num_sums, reads.stored_reads_R.sum())
    assert (found.ids, found.rows_read) == (reads.rows_before, reads.rows_after)
    assert found.ids_G.sum() == reads.rows_before


def test_rungs_come_in_order_of_worth(choice):
    found = priced(choice.bags, choice.held_sums)
    for rungs in (found.plain, found.stored):
        assert (np.diff(rungs.worth_K) <= 0).all()


@pytest.mark.parametrize("ahead", [False, True])
def test_every_byte_is_a_row_or_a_sector_of_metadata(ways, choice, two_memories, ahead):
    reads = count_reads(choice.bags.validation, choice.held_sums)
    plain, ids = int(reads.plain_reads_N.sum()), reads.rows_before
    for way, variant in ways(two_memories(SPLIT), ahead):
        asked = variant.hbm_read_G.sum() + variant.host_read_G.sum() + variant.rung_read_GK.sum()
        rows = reads.rows_after if way.mode == "sums" else ids
        mapped = (plain if way.mode == "sums" else ids) if variant.split else 0
        coded = ids if way.mode == "sums" and not ahead else 0
        assert asked == pytest.approx(rows * ROW + (mapped + coded) * SECTOR)


def test_bytes_in_memory_are_rows_codes_and_maps(ways, choice, two_memories):
    table, sums = 400 * ROW, choice.held_sums
    for way, variant in ways(two_memories(SPLIT)):
        stored = sums.num_sums * ROW if way.mode == "sums" else 0
        code = sums.metadata_bytes if way.mode == "sums" else 0
        hot_map = 400 * 4 if variant.split else 0
        whole = table if variant.originals == "hbm" else 0
        assert variant.hbm_bytes == whole + hot_map + code
        assert variant.host_bytes == table - whole + stored


def test_a_stock_table_is_split_only_by_a_software_cache(ways, two_memories):
    def stock_in_host(memory):
        return next(v for way, v in ways(memory) if way.mode == "stock" and v.originals == "host")

    assert not stock_in_host(two_memories(SPLIT)).bytes_K.size
    cached = stock_in_host(two_memories(SPLIT, uvm="cached"))
    assert cached.bytes_K.sum() == 400 * ROW
    assert cached.hbm_bytes == 0


def test_one_memory_reads_everything_from_host(ways, two_memories):
    from grace_sharding.memory_tiers import MemoryModel

    for _, variant in ways(MemoryModel.named("cpu")):
        alone = decide([[variant]], MemoryModel.named("cpu"))
        assert alone.hbm_read_T.sum() == 0
        assert alone.host_read_T.sum() > 0


def test_bags_are_in_one_group_each(choice):
    found = priced(choice.bags, None)
    lengths = np.diff(choice.bags.validation.offsets_B1)
    for group in range(GROUPS):
        assert found.plain.reads_GK[group].sum() == pytest.approx(lengths[group::GROUPS].sum())
