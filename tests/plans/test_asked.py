"""Asked: over the rows that are asked for, bags read what they read of the whole table."""

import tracemalloc

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.asked import Asked
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace


def spread_out(trace, num_rows):
    """The same bags, their ids far apart in a larger table."""
    step = num_rows // trace.num_items
    ids = trace.ids_L.astype(np.int64) * step + step - 1
    return Trace(trace.offsets_B1, ids, num_rows, note=trace.note)


@pytest.fixture(scope="module")
def choice(grouped):
    """Bags of a table of which most rows are never asked for, and one finalist of each method."""
    return judge_all(
        split_validation(spread_out(grouped(600), 2850)),
        PlanOptions(rewriting="ahead", size_limits=(3, 4)),
    )


def test_bags_read_the_same_rows_with_the_sums_of_every_method(choice):
    assert len({one.method for one in choice.finalists}) > 2
    item_A = choice.bags.asked.item_A
    for one in choice.finalists:
        sums = choice.bags.asked.whole(one.held_sums)
        for before, after in (
            (choice.bags.fit, choice.bags.few.fit),
            (choice.bags.validation, choice.bags.few.validation),
        ):
            whole, part = count_reads(before, sums), count_reads(after, one.held_sums)
            assert np.array_equal(whole.stored_reads_R, part.stored_reads_R)
            assert np.array_equal(whole.plain_reads_N[item_A], part.plain_reads_N)
            assert whole.rows_after == part.rows_after


def test_what_is_shipped_is_over_the_whole_table_and_takes_the_bytes_that_were_said(choice):
    num_rows = choice.bags.all.num_items
    for one in choice.finalists:
        for share in (1.0, 0.25):
            few, whole = one.refit.few if share == 1 else None, one.first(share)
            assert whole.num_items == num_rows
            assert set(whole.set_items_S) <= set(choice.bags.asked.item_A)
            if few is not None:
                assert few.num_items < num_rows / 6
                assert few.metadata_bytes_of(num_rows) == whole.metadata_bytes


def test_rows_that_nobody_asks_for_change_nothing_but_the_numbers(grouped):
    dense, options = grouped(300), PlanOptions(rewriting="ahead", size_limits=(4,))
    wide = spread_out(dense, 40 * dense.num_items)
    # The budget is a share of the rows; 512 partners of each item are kept of both.
    few = PlanOptions(rewriting="ahead", size_limits=(4,), budget=options.budget / 40)
    one, other = judge_all(split_validation(dense), options), judge_all(split_validation(wide), few)
    assert set(one.cuts) == set(other.cuts)
    for a, b in zip(one.finalists, other.finalists, strict=True):
        if a.method.startswith("grace"):  # the others keep fewer partners of a larger table
            assert a.picked == b.picked
            assert np.array_equal(a.refit.sums.set_indptr_R1, b.refit.sums.set_indptr_R1)
            assert np.array_equal(a.refit.sums.set_items_S * 40 + 39, b.refit.sums.set_items_S)


def test_choosing_takes_no_memory_for_rows_that_nobody_asks_for(grouped):
    trace = grouped(200)

    def peak(num_rows):
        options = PlanOptions(rewriting="ahead", size_limits=(4,), budget=100.5 / num_rows)
        bags = split_validation(spread_out(trace, num_rows))
        tracemalloc.start()
        assert judge_all(bags, options).held_sums.num_sums > 10
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(trace.num_items)  # what is made once
    assert peak(100_000_000) < 2 * peak(trace.num_items) + 1_000_000


def test_a_table_that_is_asked_for_whole_is_left_as_it_is():
    trace = Trace.from_bags([[2, 0], [1]])
    asked = Asked.of([trace])
    assert asked.trace(trace) is trace
    sums = StoredSums.from_clusters(3, np.array([0, 2]), np.array([0, 2]))
    assert asked.whole(sums) is sums


@pytest.mark.parametrize(
    "num_rows", [30, 5]
)  # more rows than ids are searched for, fewer looked up
def test_the_bags_keep_all_that_belongs_to_them(num_rows):
    trace = Trace(
        np.array([0, 3, 3, 6]),
        np.array([4, 0, 4, 2, 0, 0]),
        num_rows,
        np.arange(6, dtype=np.float32),
        np.arange(3),
        np.arange(6),
        "a note",
    )
    few = Asked.of([trace]).trace(trace)
    assert (few.ids_L.tolist(), few.num_items) == ([2, 0, 2, 1, 0, 0], 3)
    for name in ("offsets_B1", "weights_L", "time_B", "split_L", "note"):
        assert getattr(few, name) is getattr(trace, name)


def test_sets_of_a_table_past_31_bits_are_refused():
    sums = StoredSums.from_sets(2, np.array([0, 2]), np.array([0, 1]))
    with pytest.raises(GraceError, match="31 bits, the table has 2,147,483,648"):
        Asked(2**31, np.array([5, 2**31 - 1])).whole(sums)
