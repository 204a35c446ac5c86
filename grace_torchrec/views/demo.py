"""The demo's report for a terminal: what was read, what it costs, what it gains, the verdicts."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grace_torchrec.demo.result import DemoResult, Measured, TableResult
from grace_torchrec.plans.claims import is_slower
from grace_torchrec.views.numbers import bytes_text, known


def demo_view(result: DemoResult) -> RenderableType:
    """Return the report that ``grace-torchrec demo`` prints."""
    head = Text(
        f"{result.trace}: {result.num_bags:,} bags of {result.pooling_factor:.1f} ids on average, "
        f"{result.num_items:,} items. The last fifth, in random order, is held out."
    )
    return Group(head, _counted(result), *(Text(line) for line in _lines(result)))


def _counted(result: DemoResult) -> Table:
    """Return what the held-out bags read, table by table."""
    table = Table(
        title="counted on the held-out bags",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    for column in ("table", "ids", "rows read", "cut", "extra rows", "extra bytes", "max error"):
        table.add_column(column, justify="left" if column == "table" else "right", overflow="fold")
    for row in result.tables:
        table.add_row(
            row.table.rpartition(".")[2], f"{row.ids:,}", f"{row.rows_read:,}", f"{row.cut:.1%}",
            f"{row.extra_rows:,}", bytes_text(row.extra_bytes), f"{row.max_abs_error:.1e}",
        )  # fmt: skip
    return table


def _lines(result: DemoResult) -> list[str]:
    """Return the sentences under the table."""
    equal = "equal to the stock model within rounding" if result.equal else "DIFFERENT FROM STOCK"
    plan = f"plan for {result.target} (modelled from its bandwidths; --memory chooses another):"
    lines = [f"outputs: {equal}", "", plan]
    for row in result.tables:
        because = ", because" if row.verdict != "use" else ":"
        lines.append(f"  {row.table.rpartition('.')[2]}: {row.verdict_told}{because} {row.reason}")
        lines += [f"    {line}" for line in _grouping(row)]
    lines += [
        f"  all tables on the held-out bags: {_claimed(result)}",
        f"  planned in {result.plan_s:.1f} s, with swap {result.build_s:.1f} s "
        "(compiling included on a first run)",
        f"  saved as {result.plan_path}",
        "",
        *_measured(result, result.measured),
    ]
    return lines


def _claimed(result: DemoResult) -> str:
    """Return what is claimed of the target machine."""
    if is_slower(result.time_ratio):
        return f"lookups modelled slower, {result.time_ratio:.2f} times stock's speed"
    if not result.is_claimed:
        return "no gain in time is claimed"
    told = f"lookups modelled {result.time_ratio:.2f} times stock's speed"
    if result.ids_for_a_launch is None:
        return told
    return f"{told}, more than one kernel launch in batches of {result.ids_for_a_launch:,} ids and more"


def _grouping(row: TableResult) -> list[str]:
    """Return what was chosen, and what both ways of rewriting would cut, if anything was fitted."""
    if row.in_line_cut is None or row.ahead_cut is None:
        return []
    lines = [
        f"best cut on validation bags: {row.in_line_cut:.1%} rewritten in line, "
        f"{row.ahead_cut:.1%} rewritten ahead; stored by {row.picked}"
    ]
    if row.sums_for_95pct is not None:
        lines.append(f"{row.sums_for_95pct:,} of its sums take 95 % of their reads")
    return lines


def _measured(result: DemoResult, measured: Measured | None) -> list[str]:
    """Return what was timed on this machine."""
    if measured is None:
        return ["measured here: nothing, no table was swapped"]
    where = (
        f"measured here ({measured.machine}; D={measured.dim}, batch {measured.batch}, "
        f"lookup {measured.lookup}; load before {known(measured.load)} on {measured.cores} cores):"
    )
    if measured.busy:  # no times that somebody could quote
        return [where, f"  verdict here: {result.verdict_here}"]
    return [
        where,
        f"  lookups of a batch: stock {measured.stock_us:,.0f} us, ours {measured.ours_us:,.0f} us "
        "(medians)",
        f"  stock over ours, round by round: lookups {measured.latency_ratio:.2f} "
        f"({measured.spread[0]:.2f}..{measured.spread[1]:.2f}), whole model "
        f"{measured.model_ratio:.2f} ({measured.model_spread[0]:.2f}..{measured.model_spread[1]:.2f})",
        f"  verdict here: {result.verdict_here}",
    ]
