"""Choose: one table with the memories to itself."""

import numpy as np
import pytest

from grace_torchrec.plans.choose import choose, choose_sums
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.traces.profile import TableProfile
from grace_torchrec.traces.trace import Trace

QUICK = PlanOptions(methods=("grace",), size_limits=(3, 4))


def test_a_table_of_items_that_come_together_is_used(spec_of, grouped, two_memories):
    table = choose(spec_of(), TableProfile(grouped(), ("item",)), QUICK, two_memories(10**9))
    assert (table.verdict, table.method) == ("use", "grace")
    assert table.spec == spec_of()


def test_the_choice_depends_on_the_seed_and_on_nothing_else(spec_of, grouped, two_memories):
    profile = TableProfile(grouped(), ("item",))
    first, again, other = (
        choose(spec_of(), profile, QUICK, two_memories(10**9), seed=seed) for seed in (1, 1, 2)
    )
    assert first.predicted == again.predicted != other.predicted


def test_rows_that_no_bag_asked_for_are_part_of_the_table(spec_of, grouped):
    choice = choose_sums(spec_of(num_rows=1000), TableProfile(grouped(), ("item",)), QUICK)
    assert (choice.sums.num_items, choice.held_sums.num_items) == (1000, 400)  # asked rows
    assert choice.sums.num_sums <= 1000


def test_a_table_that_was_not_recorded_stays_stock_with_that_reason(spec_of):
    assert choose_sums(spec_of(), None, QUICK).reason == "the profile does not hold this table"


def test_weights_count_only_where_the_model_uses_them(spec_of, grouped):
    trace = grouped()
    weights = np.arange(trace.num_ids, dtype=np.float32)
    profile = TableProfile(Trace(trace.offsets_B1, trace.ids_L, 400, weights), ("item",))
    assert choose_sums(spec_of(), profile, QUICK).method == "grace"
    assert "equal weight" in choose_sums(spec_of(is_weighted=True), profile, QUICK).reason
    bare = TableProfile(trace, ("item",))
    assert "without weights" in choose_sums(spec_of(is_weighted=True), bare, QUICK).reason


@pytest.mark.parametrize("in_order", [False, True])
def test_the_last_fifth_judges(spec_of, grouped, in_order):
    trace = grouped(num_bags=103)
    bags = choose_sums(spec_of(), TableProfile(trace, ("item",)), QUICK, in_order=in_order).bags
    assert (bags.fit.num_bags, bags.validation.num_bags) == (83, 20)
    assert np.array_equal(bags.fit.ids_L, trace.ids_L[: bags.fit.num_ids]) == in_order
