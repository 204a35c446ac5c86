"""Cost of lookups on a CPU: in line only where reading fewer rows clearly pays for rewriting."""

from dataclasses import replace

import numpy as np
import pytest

from bench.subset_twin import subset_twin
from grace_sharding.lookup_costs import LookupCosts
from grace_torchrec.plans.cpu_lookup_cost import KNOWN, SUBSETS_NS, price_on_cpu
from grace_torchrec.sums.stored_sums import StoredSums

MILLION = 1_000_000
XEON, EPYC = KNOWN.values()


@pytest.fixture(scope="module")
def sums_of():
    """Return a function from a number of rows to sums of clusters of four, 11 for 16 rows."""

    def make(num_rows):
        clusters = num_rows // 16
        ends = np.arange(0, 4 * clusters + 1, 4)
        return StoredSums.from_clusters(num_rows, ends, np.arange(4 * clusters))

    return make


@pytest.fixture(scope="module")
def sums(sums_of):
    return sums_of(MILLION)


@pytest.mark.parametrize("costs", [None, XEON, EPYC], ids=["unknown", "xeon", "epyc"])
@pytest.mark.parametrize("cut", [0.0, 0.1, 0.25])
def test_no_cut_of_narrow_rows_pays(sums, cut, costs):
    assert not price_on_cpu(5 * MILLION, 64, sums, cut, costs).pays


@pytest.mark.parametrize("costs", [None, XEON, EPYC], ids=["unknown", "xeon", "epyc"])
def test_the_wider_the_row_the_sooner_it_pays(sums, costs):
    paying = [price_on_cpu(MILLION, width, sums, 0.3, costs).pays for width in (64, 4096)]
    assert paying == [False, True]


@pytest.mark.parametrize("costs", [None, XEON, EPYC], ids=["unknown", "xeon", "epyc"])
def test_the_greater_the_cut_the_less_time(sums, costs):
    times = [price_on_cpu(MILLION, 512, sums, cut / 10, costs).ours_ns for cut in range(6)]
    assert times == sorted(times, reverse=True)


# (rows, bytes of a row, measured time of stock over that of ours, in line) at a cut of 40 %, 512 bags of 60 ids,
# one thread: modules, but for the second, which is the op; ``python -m bench lookup --dim D --rows N``
MEASURED = {
    "a Xeon (Emerald Rapids)": [(MILLION, 256, 1.17), (2_400_000, 512, 1.27)],
    "an EPYC (Zen 5)": [
        (10_000, 256, 0.33), (10_000, 512, 0.57), (10_000, 1024, 0.86), (100_000, 256, 0.58),
        (100_000, 512, 0.73), (MILLION, 256, 0.68), (MILLION, 512, 0.86), (MILLION, 1024, 1.07), (MILLION, 2048, 1.30),
        (4 * MILLION, 256, 0.60), (4 * MILLION, 512, 0.76), (100_000, 2048, 1.31),
    ],
}  # fmt: skip
CASES = [(name, *case) for name, cases in MEASURED.items() for case in cases]


@pytest.mark.parametrize(("name", "num_rows", "row_bytes", "ratio"), CASES)
def test_what_was_measured_as_a_loss_is_not_taken(sums_of, name, num_rows, row_bytes, ratio):
    sums = sums_of(num_rows)
    model = price_on_cpu(num_rows, row_bytes, sums, 0.4, KNOWN[name])
    if ratio < 1:
        assert not model.pays
        assert not price_on_cpu(num_rows, row_bytes, sums, 0.4).pays
    assert abs(model.stock_ns / model.ours_ns - ratio) < 0.25  # what the model is good for


def test_an_unknown_cpu_is_the_one_on_which_sums_gain_least(sums):
    """A table that pays on the Xeon and loses on the EPYC is left alone where nobody knows."""
    unknown, *known = (price_on_cpu(MILLION, 512, sums, 0.4, c) for c in (None, XEON, EPYC))
    assert [priced.pays for priced in known] == [True, False]
    assert replace(unknown, cpu="") == known[1]
    assert unknown.cpu == "an EPYC (Zen 5)"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_rows", [1600, MILLION])
@pytest.mark.parametrize("row_bytes", [128, 256, 1024])
def test_what_is_claimed_of_an_unknown_cpu_is_the_least_of_all(sums, num_rows, row_bytes, ahead):
    """Rewritten ahead, another CPU may be the careful one than in line."""
    table = num_rows, row_bytes, sums, 0.4
    shares = [price_on_cpu(*table, costs, ahead).share(ahead) for costs in (None, XEON, EPYC)]
    assert shares[0] == max(shares[1:])
    for costs, share in zip((XEON, EPYC), shares[1:], strict=True):
        one = price_on_cpu(*table, costs)
        ours_ns = one.ours_ns - one.rewrite_ns if ahead else one.ours_ns
        assert share == ours_ns / one.stock_ns


def test_subset_codes_cost_more(sums_of):
    clusters = sums_of(1600)
    subsets, _ = subset_twin(clusters)
    times = [price_on_cpu(1600, 512, sums, 0.4).ours_ns for sums in (clusters, subsets)]
    assert times[1] == pytest.approx(times[0] + SUBSETS_NS)


def test_the_reason_says_whose_costs_they_are_and_what_to_do(sums):
    verdict = price_on_cpu(10_000, 256, sums, 0.4)
    assert not verdict.pays
    assert "rewriting='ahead'" in verdict.reason
    assert f"{verdict.rewrite_ns:.0f} ns an id on one core of an EPYC (Zen 5)" in verdict.reason
    assert "grace-torchrec calibrate measures yours" in verdict.reason
    measured = price_on_cpu(10_000, 256, sums, 0.4, LookupCosts(0.1, 0.1, 0, 99.0, 0))
    assert "99 ns an id on one core, by the costs in the memory model" in measured.reason
    assert "calibrate measures yours" not in measured.reason
