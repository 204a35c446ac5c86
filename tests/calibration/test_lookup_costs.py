"""Costs of lookups: the model gives back the times that it was made from, and nothing wrong is timed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.lookup_costs import LookupCosts, LookupCostsError
from grace_torchrec.calibration import lookup_costs
from grace_torchrec.calibration.grouped_bags import grouped_bags
from grace_torchrec.calibration.lookup_costs import NARROW, SAVED, WIDE, costs_of, measure_lookups
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.cpu_lookup_cost import price_on_cpu

SMALL = 1 << 22
NEAR_ROWS, FAR_ROWS = 4096, 1 << 22


@pytest.fixture(scope="module")
def sums_of():
    made = {}

    def make(num_rows):
        if num_rows not in made:
            made[num_rows] = grouped_bags(num_rows, 60, 8, SAVED, 1).sums
        return made[num_rows]

    return make


@given(
    st.builds(
        LookupCosts,
        st.floats(0.005, 0.03), st.floats(0.031, 0.1), st.floats(0, 5), st.floats(1, 20), st.floats(0, 3),
    )
)  # fmt: skip
def test_times_that_the_model_gives_lead_back_to_its_costs(sums_of, costs):
    def priced(num_rows, dim):
        return price_on_cpu(num_rows, 4 * dim, sums_of(num_rows), SAVED, costs)

    near, far, wide = (
        priced(NEAR_ROWS, NARROW),
        priced(FAR_ROWS, NARROW),
        priced(FAR_ROWS // 4, WIDE),
    )
    found = costs_of(
        {
            "near": near.stock_ns, "near_ours": near.ours_ns,
            "far": far.stock_ns, "far_ours": far.ours_ns, "wide": wide.stock_ns,
        },
        FAR_ROWS,
    )  # fmt: skip
    for name, cost in vars(costs).items():
        assert getattr(found, name) == pytest.approx(cost, rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5), st.sampled_from([4096, 1 << 22]))
def test_times_of_a_busy_machine_give_costs_all_the_same(times, far_rows):
    """Differences may be negative; a cost never is."""
    costs_of(
        dict(zip(("near", "near_ours", "far", "far_ours", "wide"), times, strict=True)), far_rows
    )


def test_this_machine_is_timed_and_left_as_it_was():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        timed = measure_lookups(SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert set(timed.ns_per_id) == {"near", "near_ours", "far", "far_ours", "wide"}
    assert all(ns > 0 for ns in timed.ns_per_id.values())
    assert timed.costs == costs_of(timed.ns_per_id, SMALL // (4 * NARROW))


def test_a_lookup_that_differs_is_not_timed(monkeypatch):
    monkeypatch.setattr(lookup_costs, "look_up_features", lambda *a, **k: a[5].fill(7))
    threads = torch.get_num_threads()
    with pytest.raises(GraceError, match="differs from the stock one"):
        measure_lookups(SMALL)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "name", ["near_byte_ns", "far_byte_ns", "doubling_ns", "rewrite_ns", "codes_ns"]
)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_costs_that_make_no_sense_are_refused(name, value):
    good = {"near_byte_ns": 1, "far_byte_ns": 1, "doubling_ns": 0, "rewrite_ns": 1, "codes_ns": 0}
    LookupCosts(**good)
    with pytest.raises(LookupCostsError, match=f"{name} must be a finite number"):
        LookupCosts(**{**good, name: value})
