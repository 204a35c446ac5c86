"""The head of a diff divides only times that are there and can be compared."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.plans.diff import Change, PlanDiff
from grace_torchrec.views.diff_tables import diff_markdown

TIMES = st.just(0.0) | st.floats(1e-12, 1e3)


def head(before, after, apart=()):
    time_s = Change("time_s", before, after)
    cost = Change("bytes", 1, 2)
    diff = PlanDiff("a", "b", (cost,), (), (), (), 0, {}, time_s, apart=apart)
    lines = diff_markdown(diff).splitlines()
    return next(line for line in lines if line.startswith("held-out bags")).rstrip()


@given(TIMES, TIMES)
def test_a_plan_that_reads_nothing_is_not_so_many_times_as_fast(before, after):
    told = head(before, after)
    assert "nan" not in told
    assert "inf" not in told
    assert ("times as" in told) == (before > 0 and after > 0)
    if before > 0 and after > 0:
        figure = float(told.split(" after, ")[1].split(" times")[0])
        ratio = before / after if "fast" in told else after / before
        assert figure >= 1
        assert math.isclose(figure, ratio, abs_tol=0.0051)


@pytest.mark.parametrize("times", [(1.0, 2.0), (0.0, 2.0), (2.0, 0.0)])
def test_times_that_cannot_be_compared_are_not_divided(times):
    assert head(*times, apart=("another machine",)).endswith(" after")
