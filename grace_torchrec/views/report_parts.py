"""Parts of the report that several sections use: tables, folded numbers, legends.

Flow: texts -> *Html*.
"""

from collections.abc import Sequence

from grace_torchrec.views.html import Html, element
from grace_torchrec.views.tables import Grid


def section(name: str, title: str, *children: Html | None) -> Html:
    """Return one section with its heading; the navigation leads to ``name``."""
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        children,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def numbers(grid: Grid, summary: str = "Show the numbers") -> Html:
    """Return a table that is folded away until it is asked for."""
    heads = [
        element("th", name, scope="col", class_=None if name in grid.left else "num")
        for name in grid.columns
    ]
    rows = [
        element(
            "tr",
            [
                element("td", cell, class_=None if name in grid.left else "num")
                for name, cell in zip(grid.columns, row, strict=True)
            ],
        )
        for row in grid.rows
    ]
    table = element("table", element("thead", element("tr", heads)), element("tbody", rows))
    return element("details", element("summary", summary), scroll(table, grid.title or summary))


def scroll(child: Html, label: str) -> Html:
    """Return a region that scrolls sideways, also by keyboard."""
    return element("div", child, class_="scroll", tabindex=0, role="region", aria_label=label)


def pill(verdict: str) -> Html:
    """Return a verdict as a mark: a bare ``use``, with a gain in time, stands out."""
    return element("span", verdict, class_=f"pill{' use' if verdict == 'use' else ''}")


def keys(entries: Sequence[tuple[str, str]]) -> Html:
    """Return the legend of a line chart: (style, text) of every line."""
    return element(
        "ul",
        [element("li", _sample(style), text) for style, text in entries],
        class_="keys",
    )


def _sample(style: str) -> Html:
    """Return a short piece of a line."""
    return element(
        "svg",
        element("path", d="M2 10 L42 10", class_=f"line {style}"),
        viewbox="0 0 44 20",
        aria_hidden="true",
    )
