"""Charts draw each number where it is."""

from xml.etree import ElementTree

import pytest

from grace_torchrec.views.svg import Axis, Line, bar, line_chart, share_axis


def parts(svg, tag):
    return [e for e in ElementTree.fromstring(svg).iter() if e.tag == tag]


def test_parts_of_a_bar_lie_side_by_side_and_fill_their_share():
    drawn = bar([(1.0, "a"), (3.0, "b")], 8.0, "hbm", "title")
    _, first, second = parts(drawn, "rect")
    assert (float(first.get("x")), float(first.get("width"))) == (0, 125)
    assert (float(second.get("x")), float(second.get("width"))) == (125, 375)
    assert first.get("class") != second.get("class")


def test_an_empty_bar_has_no_width():
    assert float(parts(bar([(0.0, "a")], 0.0, "hbm", "t"), "rect")[1].get("width")) == 0


def test_higher_values_are_drawn_higher_and_equal_ratios_are_equal_steps():
    line = Line("n", "a", [(1, 0.1), (10, 0.2), (100, 0.3)])
    drawn = line_chart(
        [line], Axis("n", [(1, "1"), (100, "100")], log=True), share_axis("s", 0.3), "t"
    )
    dots = [(float(d.get("cx")), float(d.get("cy"))) for d in parts(drawn, "circle")]
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.2)
    assert dots[0][1] > dots[1][1] > dots[2][1]


def test_nothing_leaves_the_axes():
    axis = Axis("n", [(1, "1"), (2, "2")])
    assert (axis.place(-5), axis.place(9)) == (0, 1)
    assert Axis("n", [(3, "3"), (3, "3")]).place(3) == 0
    assert Axis("n", [(1, "1"), (8, "8")], log=True).place(0) == 0


@pytest.mark.parametrize("most", [0.0, 0.004, 0.05, 0.23, 0.5, 1.0])
def test_an_axis_of_shares_reaches_its_greatest_value_with_few_marks(most):
    ticks = share_axis("s", most).ticks
    assert ticks[-1][0] >= most - 1e-9
    assert 2 <= len(ticks) <= 6
    assert len({text for _, text in ticks}) == len(ticks)
