"""SVG charts of the report: bars and line charts that read well in both colour schemes.

Flow: numbers -> *Html* with one svg.  Colours come from classes, so the page's style sheet decides
over them; every chart says in words what it shows, and its numbers stand beside it in a table.
Shapes: P points of a line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grace_torchrec.views.html import Html, element

WIDTH, HEIGHT = 340, 216
LEFT, RIGHT, TOP, BOTTOM = 42, 14, 14, 38
BAR_UNITS, BAR_HEIGHT = 1000, 20


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: What it shows.
        style: Class of the style sheet: ``a`` or ``b``.
        points: ``[P]`` (x, y) in the units of the axes.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: What is measured.
        ticks: (value, text) of each mark; the first and the last one end the axis.
        log: Whether distances are ratios.
    """

    title: str
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value is between the first mark (0) and the last one (1)."""
        low, high = self.ticks[0][0], self.ticks[-1][0]
        if self.log:
            low, high, value = (math.log(max(x, 1e-12)) for x in (low, high, value))
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


def bar(parts: Sequence[tuple[float, str]], longest: float, style: str, title: str) -> Html:
    """Return one bar of several parts, as wide as the page gives it room.

    Args:
        parts: (value, what it is) from left to right.
        longest: The value that fills the whole width.
        style: Class of the style sheet; parts take turns in two shades of it.
        title: What the whole bar shows.
    """
    rects, x = [], 0.0
    for number, (value, text) in enumerate(parts):
        width = BAR_UNITS * value / longest if longest else 0.0
        rects.append(
            element(
                "rect",
                element("title", text),
                x=f"{x:.2f}",
                y=0,
                width=f"{max(width, 0):.2f}",
                height=BAR_HEIGHT,
                class_=f"{style} shade{number % 2}",
            )
        )
        x += width
    track = element("rect", x=0, y=0, width=BAR_UNITS, height=BAR_HEIGHT, class_="track")
    return element(
        "svg",
        element("title", title),
        track,
        rects,
        viewbox=f"0 0 {BAR_UNITS} {BAR_HEIGHT}",
        preserveaspectratio="none",
        class_="bar",
        role="img",
        aria_label=title,
    )


def line_chart(
    lines: Sequence[Line], across: Axis, up: Axis, title: str, mark: float | None = None
) -> Html:
    """Return a line chart.

    Args:
        lines: What to draw; the first one lies on top.
        across: The axis from left to right.
        up: The axis from bottom to top.
        title: What the chart shows, in a sentence.
        mark: Place on the axis across that a line goes up from.
    """
    parts = [*_grid(across, up)]
    if mark is not None:
        x = _x(across, mark)
        parts.append(element("line", x1=x, y1=TOP, x2=x, y2=HEIGHT - BOTTOM, class_="mark"))
    for line in reversed(lines):
        places = [(_x(across, x), _y(up, y)) for x, y in line.points]
        path = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(places))
        parts.append(element("path", d=path, class_=f"line {line.style}"))
        if len(places) <= 12:
            parts += [_dot(line, x, y) for x, y in places]
    return element(
        "svg",
        element("title", title),
        parts,
        viewbox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        role="img",
        aria_label=title,
    )


def _grid(across: Axis, up: Axis) -> list[Html]:
    """Return the marks and titles of both axes."""
    parts = []
    for value, text in up.ticks:
        y = _y(up, value)
        parts.append(element("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="grid"))
        parts.append(element("text", text, x=LEFT - 6, y=f"{float(y) + 4:.1f}", class_="tick end"))
    for number, (value, text) in enumerate(across.ticks):
        last = number == len(across.ticks) - 1
        where = "tick end" if last else "tick middle" if number else "tick"
        x = WIDTH - RIGHT if last else _x(across, value)
        parts.append(element("text", text, x=x, y=HEIGHT - BOTTOM + 16, class_=where))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", across.title, x=middle, y=HEIGHT - 6, class_="axis middle"))
    return parts


def _dot(line: Line, x: str, y: str) -> Html:
    """Return the mark of one point: round on one line, square on the other."""
    if line.style == "a":
        return element("circle", cx=x, cy=y, r=4, class_=f"dot {line.style}")
    corner = {"x": f"{float(x) - 3.5:.1f}", "y": f"{float(y) - 3.5:.1f}"}
    return element("rect", **corner, width=7, height=7, class_=f"dot {line.style}")


def _x(across: Axis, value: float) -> str:
    """Return the place of a value from left to right."""
    return f"{LEFT + across.place(value) * (WIDTH - LEFT - RIGHT):.1f}"


def _y(up: Axis, value: float) -> str:
    """Return the place of a value from top to bottom."""
    return f"{HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM):.1f}"


def share_axis(title: str, most: float) -> Axis:
    """Return an axis of shares from 0 to a round value not below ``most``.

    >>> [text for _, text in share_axis("cut", 0.23).ticks]
    ['0%', '10%', '20%', '30%']
    """
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if most / s <= 4 or s == 0.25)
    marks = max(1, math.ceil(most / step - 1e-9))
    return Axis(title, [(n * step, f"{n * step:.0%}") for n in range(marks + 1)])
