"""Cost of lookups on a CPU: in line only where reading fewer rows clearly pays for rewriting."""

import pytest

from grace_torchrec.plans.cpu_lookup_cost import in_line_on_cpu

MILLION = 1_000_000


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.25])
def test_no_cut_of_narrow_rows_pays(cut):
    assert not in_line_on_cpu(5 * MILLION, 64, 5 * MILLION, cut).pays


def test_the_wider_the_row_the_sooner_it_pays():
    paying = [in_line_on_cpu(2 * MILLION, width, MILLION, 0.3).pays for width in (64, 2048)]
    assert paying == [False, True]


def test_the_greater_the_cut_the_less_time():
    times = [in_line_on_cpu(MILLION, 512, MILLION, cut / 10).ours_ns for cut in range(6)]
    assert times == sorted(times, reverse=True)


def test_the_reason_says_what_to_do_where_it_does_not_pay():
    verdict = in_line_on_cpu(10_000, 256, 10_000, 0.4)
    assert not verdict.pays
    assert "rewriting='ahead'" in verdict.reason
    assert f"{verdict.rewrite_ns:.0f} ns an id" in verdict.reason
