"""Asked: over the rows that are asked for, bags read what they read of the whole table."""

import numpy as np
import pytest

from grace_torchrec.plans.asked import Asked
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.trace import Trace


@pytest.fixture(scope="module")
def choice(grouped):
    """Bags of a table of which most rows are never asked for, and one finalist of each method."""
    some = grouped(600)
    spread = Trace(some.offsets_B1, some.ids_L.astype(np.int64) * 7 + 3, 7 * some.num_items + 50)
    return judge_all(split_validation(spread), PlanOptions(rewriting="ahead"))


def test_bags_read_the_same_rows_with_the_sums_of_every_method(choice):
    assert len({one.method for one in choice.finalists}) > 2
    for one in choice.finalists:
        asked = Asked.of(choice.bags, [one.held_ranked, one.held_sums])
        few, sums = asked.bags(choice.bags), asked.sums(one.held_sums)
        for before, after in (
            (choice.bags.fit, few.fit),
            (choice.bags.validation, few.validation),
        ):
            whole, part = count_reads(before, one.held_sums), count_reads(after, sums)
            assert np.array_equal(whole.stored_reads_R, part.stored_reads_R)
            assert np.array_equal(whole.plain_reads_N[asked.item_A], part.plain_reads_N)
            assert whole.rows_after == part.rows_after


def test_smaller_sizes_hold_the_same_sets(choice):
    for one in choice.finalists:
        asked = Asked.of(choice.bags, [one.held_ranked, one.held_sums])
        whole, part = one.held_ranked.first(30), asked.ranked(one.held_ranked).first(30)
        assert np.array_equal(asked.item_A[part.set_items_S], whole.set_items_S)
        assert np.array_equal(part.set_indptr_R1, whole.set_indptr_R1)


def test_code_takes_the_bytes_of_the_whole_table(choice):
    num_rows = choice.bags.all.num_items
    for one in choice.finalists:
        few = Asked.of(choice.bags, [one.held_sums]).sums(one.held_sums)
        assert few.num_items < num_rows / 6
        assert few.metadata_bytes_of(num_rows) == one.held_sums.metadata_bytes
