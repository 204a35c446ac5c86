"""Section of the report on other machines: HBM size and beta, by sliders and as a table.

Flow: WhatIf, or the plan alone -> *Html* -> report.  Without a profile the reads of single rows are not
known, so that rows cannot move: only beta can change then.
"""

import json
from collections.abc import Sequence

from grace_torchrec.plans.summary import PlanSummary
from grace_torchrec.plans.what_if import BETAS, WhatIf
from grace_torchrec.views.html import Html, element
from grace_torchrec.views.numbers import bytes_text, seconds_text
from grace_torchrec.views.report_parts import scroll, section
from grace_torchrec.views.report_tables import MEMORY
from grace_torchrec.views.svg import BAR_HEIGHT, BAR_UNITS

TITLE = "What if the machine were another"
Seconds = tuple[float, float, float | None]  # HBM, host, stock


def what_if_section(summary: PlanSummary, found: WhatIf | None) -> Html:
    """Return the sliders, the answer and the whole grid.

    Args:
        summary: The plan.
        found: Its rows placed anew on many machines; None: only the host bandwidth can change.
    """
    if "hbm" not in summary.rooms:
        return section(
            "whatif", TITLE, element("p", f"{summary.machine} has one memory; nothing can move.")
        )
    if found is None:
        return _beta_only(summary)
    bags = (
        "the bags that the plan was made from" if found.seen else "bags that the plan has not seen"
    )
    told = (
        "The sums and verdicts of this plan, with its rows placed anew for each machine: HBM is "
        "filled to where the slower memory is fastest, also where this plan keeps rows in a free HBM. Counted on "
        f"{found.bags:,} bags, {bags}. What another plan would choose there is not shown. Modelled from "
        "bandwidths alone: caches, launches and the cost of rewriting are not in these figures."
    )
    if found.left_out:
        missing = ", ".join(map(bytes_text, found.left_out))
        told += f" Left out, for the rows do not fit the memories then: HBM of {missing}."
    sizes = [bytes_text(size) for size in found.hbm_bytes]
    betas = [f"{beta:.3g}" for beta in found.betas]
    cells: list[list[Seconds]] = [
        [(cell.hbm_s, cell.host_s, cell.stock_s) for cell in row] for row in found.cells
    ]
    table = _heat(sizes, betas, found)
    return _section(told, sizes, betas, cells, found.here, table)


def _beta_only(summary: PlanSummary) -> Html:
    """Return the beta slider alone: every row stays where it is."""
    busy_s = {part.tier: part.time_s or 0.0 for part in summary.tiers}
    own = float(summary.settings["beta"])
    grid = sorted({*BETAS, own})
    cells: list[list[Seconds]] = [
        [(busy_s["hbm"], busy_s["host"] * own / beta, None) for beta in grid]
    ]
    told = (
        "Every row stays where this plan put it; only the bandwidth of host memory changes. Modelled "
        "from bandwidths alone, without caches and launches. Make the "
        "report with --profile to move rows too and to change the size of HBM."
    )
    betas = [f"{beta:.3g}" for beta in grid]
    rows = [
        element(
            "tr",
            element("th", text, scope="row"),
            element("td", seconds_text(max(h, g)), data_cell=f"0,{n}"),
        )
        for n, (text, (h, g, _)) in enumerate(zip(betas, cells[0], strict=True))
    ]
    heads = [element("th", text, scope="col") for text in ("beta", "time, modelled")]
    table = element(
        "table", element("thead", element("tr", heads)), element("tbody", rows), class_="heat"
    )
    return _section(told, [], betas, cells, (0, grid.index(own)), table)


def _section(
    told: str,
    sizes: Sequence[str],
    betas: Sequence[str],
    cells: Sequence[Sequence[Seconds]],
    here: tuple[int, int],
    table: Html,
) -> Html:
    """Return text, sliders, bars and the table of all numbers."""
    data = json.dumps({"sizes": sizes, "betas": betas, "cells": cells}).replace("<", "\\u003c")
    controls = [
        _slider("beta", "Host over HBM bandwidth (beta)", betas, here[1]),
    ]
    if sizes:
        controls.insert(0, _slider("size", "HBM for rows", sizes, here[0]))
    first = cells[here[0]][here[1]]
    longest = max(value for value in first if value is not None)
    names = ("hbm", "host") if first[2] is None else ("hbm", "host", "stock")
    bars = [_bar(name, value or 0.0, longest) for name, value in zip(names, first, strict=False)]
    panel = element(
        "div",
        element("div", controls, class_="sliders"),
        element("p", "", id="answer", class_="answer", role="status"),
        bars,
        class_="panel script-only",
    )
    return section(
        "whatif",
        TITLE,
        element("p", told),
        panel,
        element(
            "details",
            element("summary", "Show the whole grid"),
            scroll(table, "Grid"),
            open=not sizes or None,
        ),
        element("script", Html(data), id="grid", type="application/json"),
    )


def _slider(name: str, label: str, texts: Sequence[str], here: int) -> Html:
    """Return one slider; arrow keys move it."""
    return element(
        "div",
        element(
            "label",
            label,
            element("output", texts[here], id=f"{name}-text", for_=name),
            for_=name,
        ),
        element(
            "input", id=name, type="range", min=0, max=len(texts) - 1, step=1, value=here,
            aria_valuetext=texts[here],
        ),
    )  # fmt: skip


def _bar(name: str, seconds: float, longest: float) -> Html:
    """Return the bar of one memory, or of the stock model."""
    width = BAR_UNITS * seconds / longest if longest else 0
    what = MEMORY.get(name, "Stock model")
    drawn = element(
        "svg",
        element("rect", x=0, y=0, width=BAR_UNITS, height=BAR_HEIGHT, class_="track"),
        element("rect", x=0, y=0, width=f"{width:.2f}", height=BAR_HEIGHT, class_=f"{name} shade0"),
        viewbox=f"0 0 {BAR_UNITS} {BAR_HEIGHT}",
        preserveaspectratio="none",
        class_="bar",
        aria_hidden="true",
    )
    value = element("span", seconds_text(seconds), id=f"{name}-time", class_="value")
    return element("div", element("span", what, class_="what"), drawn, value, class_="barrow")


def _heat(sizes: Sequence[str], betas: Sequence[str], found: WhatIf) -> Html:
    """Return the table of speed-ups: a row an HBM size, a column a beta."""
    heads = [element("th", "HBM", scope="col")]
    heads += [element("th", f"beta {text}", scope="col", class_="num") for text in betas]
    rows = [
        element(
            "tr",
            element("th", size, scope="row"),
            [
                element(
                    "td", f"{cell.ratio:.2f}x", data_cell=f"{r},{c}",
                    class_="here" if (r, c) == found.here else None,
                )
                for c, cell in enumerate(row)
            ],
        )
        for r, (size, row) in enumerate(zip(sizes, found.cells, strict=True))
    ]  # fmt: skip
    return element(
        "table", element("thead", element("tr", heads)), element("tbody", rows), class_="heat"
    )
