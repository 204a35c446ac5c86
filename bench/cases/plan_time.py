"""plan_time: seconds to decide over many tables that share two memories, grouping excluded.

Flow: generated profiles -> sums of a few bags of each table (not timed) -> ``settle`` (timed): reads
of every size of sums, joint choice, refit of the order, placement.  26 tables are the shape of a
DLRM: 7 of 10,000,000 rows, the others smaller; more tables are smaller still.
"""

import resource
import time
from typing import Any

import click
import numpy as np

from bench.run import emit
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.grouping.paper_greedy import GrowthRule, grow_clusters
from grace_torchrec.plans.candidates import Choice, Finalist, Refit, no_sums, split_validation
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

LARGE_TABLES, LARGE_ROWS, LARGE_BAGS = 7, 10_000_000, 20_000
DIM = 64
GROUPED_BAGS = 1000  # sums are grown on so many bags only: grouping is not what is timed
MACHINE = "gh200"


def plan_time(num_tables: int, capacity: float, seed: int) -> dict[str, Any]:
    """Plan ``num_tables`` tables once; return the seconds and the balance.

    Args:
        num_tables: Tables of the model.
        capacity: HBM bytes over those of all tables.
        seed: Of the generator.
    """
    specs, choices = [], []
    for number, (rows, bags) in enumerate(_sizes(num_tables)):
        spec = TableSpec("", f"t{number}", rows, DIM, "fp32", "sum", (f"f{number}",), False)
        specs.append(spec)
        choices.append(_choice(generate(rows, bags, seed + number, pooling=(5, 60))))
    total = sum(spec.num_rows * spec.row_bytes for spec in specs)
    hbm_bytes = int(capacity * total)
    memory = MemoryModel.named(MACHINE, hbm_bytes=hbm_bytes, host_bytes=8 * total)
    options = PlanOptions(rewriting="ahead")
    small = MemoryModel.named(MACHINE, hbm_bytes=specs[-1].num_rows * specs[-1].row_bytes // 2)
    settle(specs[-1:], choices[-1:], small, options)  # compiles what rewriting needs, sets too
    start, cpu = time.perf_counter(), time.process_time()
    tables = settle(specs, choices, memory, options)
    plan_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {
        "tables": num_tables,
        "rows": sum(spec.num_rows for spec in specs),
        "machine": MACHINE,
        "hbm_bytes": hbm_bytes,
        "plan_s": plan_s,
        "cpu_s": cpu_s,
        "hbm_filled": sum(table.placement.hbm.bytes for table in tables) / hbm_bytes,
        **_balance(tables),
        "used": sum(table.verdict == "use" for table in tables),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _sizes(num_tables: int) -> list[tuple[int, int]]:
    """Rows and bags of each table, the large ones first."""
    if num_tables > 2 * 26:
        rows = np.geomspace(100_000, 1000, num_tables).astype(int)
        return [(int(size), 500) for size in rows]
    large = min(LARGE_TABLES, num_tables)
    rows = np.geomspace(1_000_000, 1000, max(num_tables - large, 1)).astype(int)[
        : num_tables - large
    ]
    return [(LARGE_ROWS, LARGE_BAGS)] * large + [(int(size), 5000) for size in rows]


def _choice(trace: Trace) -> Choice:
    """What a table could store, grown on a few of its bags."""
    bags = split_validation(trace, in_order=True)
    grouped = bags.few.all.take(np.arange(min(GROUPED_BAGS, bags.fit.num_bags)))
    budget = trace.num_items // 2
    sums = grow_clusters(count_pairs(grouped), budget, GrowthRule(3))
    if not sums.num_sums:
        return no_sums(bags, "nothing was grown")
    reads = count_reads(bags.few.validation, sums)
    grown = Finalist("grace", "", sums, sums, reads, lambda: Refit(sums, budget, 1.0, bags.asked))
    return Choice(bags, grown, (grown,), "", {"grace": reads.cut}, ())


def _balance(tables: tuple[TablePlan, ...]) -> dict[str, float]:
    """Return how busy the memories are predicted to be, and how far apart."""
    hbm_s = sum(table.predicted.hbm_s for table in tables)
    host_s = sum(table.predicted.host_s for table in tables)
    slower = max(hbm_s, host_s)
    stock_s = max(
        sum(table.predicted.stock_hbm_s for table in tables),
        sum(table.predicted.stock_host_s for table in tables),
    )
    return {
        "hbm_s": hbm_s,
        "host_s": host_s,
        "imbalance": 1 - min(hbm_s, host_s) / slower if slower else 0.0,
        "time_ratio": stock_s / slower if slower else 1.0,
    }


@click.command(name="plan_time", help=__doc__)
@click.option("--tables", type=click.IntRange(min=1), default=26, show_default=True)
@click.option(
    "--capacity",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="HBM, in bytes of all tables.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(tables: int, capacity: float, seed: int, as_json: bool) -> None:
    """Parse, measure, print."""
    emit({**plan_time(tables, capacity, seed), "seed": seed}, as_json, "plan_time")
