"""The demo's table for a terminal: what was read, what it costs, what it gains, the verdict."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grace_torchrec.demo.result import DemoResult
from grace_torchrec.views.numbers import bytes_text


def demo_view(result: DemoResult) -> RenderableType:
    """Return the report that ``grace-torchrec demo`` prints."""
    head = Text(
        f"{result.trace}: {result.num_bags:,} bags of {result.pooling_factor:.1f} ids on average, "
        f"{result.num_items:,} items; trained {result.losses[0]:.3f} -> {result.losses[1]:.3f}"
    )
    table = Table(title="held-out bags, ids in source order", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("table", no_wrap=True)
    for column in ("ids", "rows read", "cut", "extra rows", "extra bytes", "max error"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for row in result.tables:
        table.add_row(
            row.table.rpartition(".")[2], f"{row.ids:,}", f"{row.rows_read:,}", f"{row.cut:.1%}",
            f"{row.extra_rows:,}", bytes_text(row.extra_bytes), f"{row.max_abs_error:.1e}",
            row.verdict,
        )  # fmt: skip
    reasons = [
        f"{row.table}: {row.verdict}, because {row.reason}"
        if row.verdict != "use"
        else f"{row.table}: use, {row.reason}"
        for row in result.tables
    ]
    return Group(head, table, *(Text(line) for line in (*reasons, "", *_lines(result))))


def _lines(result: DemoResult) -> list[str]:
    """Return the sentences under the table."""
    lines = [f"chosen in {result.plan_s:.1f} s, built and swapped after {result.build_s:.1f} s"]
    measured = result.measured
    if measured is None:
        lines.append("measured here: nothing, no table was swapped")
    else:
        lines += [
            f"measured here ({measured.machine}; D={measured.dim}, batch {measured.batch}, "
            f"lookup {measured.lookup}):",
            f"  lookups  stock {measured.stock_us:,.0f} us, ours {measured.ours_us:,.0f} us: "
            f"{measured.latency_ratio:.2f}x ({measured.spread[0]:.2f}..{measured.spread[1]:.2f})",
            f"  model    {measured.model_ratio:.2f}x "
            f"({measured.model_spread[0]:.2f}..{measured.model_spread[1]:.2f})",
            f"  verdict  {result.verdict_here}",
        ]
    lines += [
        f"modelled for {result.target} (not measured): lookups {result.time_ratio:.2f}x",
        "outputs equal the stock model within rounding" if result.equal else "OUTPUTS DIFFER",
        f"plan: {result.plan_path}",
    ]
    return lines
