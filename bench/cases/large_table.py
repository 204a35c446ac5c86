"""large_table: seconds and memory of a whole plan for few bags of tables of ever more rows.

Flow: bags of the generator over few items, spread over the rows of a table -> ``make_plan`` (timed, its
peak of memory watched).  Most rows of a table in production are never asked for by the bags that a
plan is made of: what a plan takes should follow the bags.
"""

import time
from typing import Any

import click
import numpy as np

from bench.memory import MB, forget_peak, peak_bytes
from bench.run import emit
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

DIM = 64
MACHINE = "h200"


def large_table(rows: list[int], num_items: int, num_bags: int, seed: int) -> dict[str, Any]:
    """Plan a table of each size from the same bags, after one that compiles.

    Args:
        rows: Rows of the tables, none below ``num_items``.
        num_items: Items of the bags.
        num_bags: Their number.
        seed: Of the generator.
    """
    bags = generate(num_items, num_bags, seed)
    _plan(bags, num_items)
    sizes = [_measured(bags, num_rows) for num_rows in rows]
    return {"items": num_items, "bags": num_bags, "machine": MACHINE, "sizes": sizes}


def _measured(bags: Trace, num_rows: int) -> dict[str, Any]:
    """Return seconds, memory and sums of the plan for a table."""
    before = forget_peak()
    start = time.perf_counter()
    num_sums, cut = _plan(bags, num_rows)
    seconds = time.perf_counter() - start
    return {
        "rows": num_rows,
        "plan_s": seconds,
        "peak_mb": (peak_bytes() - before) // MB,
        "sums": num_sums,
        "cut": cut,
    }


def _plan(bags: Trace, num_rows: int) -> tuple[int, float]:
    """Plan a table in which the items of the bags lie far apart; return its sums and their cut."""
    step = num_rows // bags.num_items
    spread = Trace(bags.offsets_B1, bags.ids_L.astype(np.int64) * step, num_rows)
    spec = TableSpec("", "t", num_rows, DIM, "fp32", "sum", ("f",), False)
    options = PlanOptions(budget=bags.num_items / num_rows)
    plan = make_plan(
        [spec], Profile.from_trace("t", spread, ("f",)), MemoryModel.named(MACHINE), options
    )
    table = plan.tables["t"]
    return table.num_sums, table.predicted.cut


@click.command(name="large_table", help=__doc__)
@click.option(
    "--rows", default="1000000,10000000,100000000", show_default=True, help="Of the tables."
)
@click.option("--items", type=click.IntRange(min=100), default=20_000, show_default=True)
@click.option("--bags", type=click.IntRange(min=100), default=12_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(rows: str, items: int, bags: int, seed: int, as_json: bool) -> None:
    """Parse, measure, print."""
    try:
        sizes = [int(each) for each in rows.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--rows {rows}: whole numbers, as 1000000,10000000") from error
    if min(sizes) < items:
        raise click.UsageError(f"--rows {rows}: a table has fewer rows than --items {items}")
    emit({**large_table(sizes, items, bags, seed), "seed": seed}, as_json, "large_table")
