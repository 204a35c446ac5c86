"""placement: throughput of two memories that are read at once, in rows, on held-out bags.

Flow: traces (tables of one model) -> every entrant chosen on validation bags and refitted on train
bags -> test bags.  Capacity C: C * N rows of any kind in HBM; the time is the slower of HBM rows and
host rows / beta, over all test bags; 1 is all rows in HBM, without sums.  All entrants are placed
by the placer of ``grace.plan``; ``none`` is not placed: it holds the most read rows.  ``lru`` is a
cache of the same rows, warm from the train bags, hits read from HBM.  ``p95_batch`` is the 95th
percentile of the times of batches of 512 bags, as a ratio too: more is better.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import placement_entrants as entrants
from bench.kept_cells import Cell
from bench.placement_grid import as_markdown, run_grid
from bench.rivals import pair_oracle
from bench.rivals.lru import lru_found
from bench.run import emit
from bench.stored import Stored
from bench.two_memories import Entrant, Figures, Served, figures, serve, served
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.candidates import Bags, Choice, judge_all
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import Split, split_bags

DIM = 1 << 20  # rows of 4 MiB: maps and codes weigh nothing, as the case counts rows
PLENTY = 1 << 60
PRIOR = ("none", "fae", "lru", "space", "community", "merci")
ENTRANTS = (*PRIOR, "grace", "ours")
Method = Callable[[Split, int, int], list[tuple[str, Any, Any]]]
CLUSTERS: dict[str, Method] = {
    "community": entrants.community_sums,
    "merci": entrants.merci_sums,
    "grace": entrants.grace_sums,
}


def placement(
    splits: Sequence[Split], beta: float, capacity: float, seed: int, asked: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of every entrant.

    Args:
        splits: One for each table.
        beta: Rate of host memory over that of HBM.
        capacity: Rows in HBM, in tables.
        seed: Of methods that draw.
        asked: Entrants to run.
    """
    rows = int(capacity * sum(split.test.num_items for split in splits))
    found = {name: _run(name, splits, rows, capacity, beta, seed) for name in asked}
    before, after = (
        sum(part) for part in zip(*((s.test.num_ids, pair_oracle.rows_read(s.test)) for s in splits), strict=True)
    )  # fmt: skip
    bound = (1 + beta) * before / after
    throughput = {name: one.throughput for name, one in found.items()}
    prior = max((throughput[name] for name in PRIOR if name in throughput), default=None)
    return {
        "capacity_rows": rows,
        "throughput": {**throughput, "any_pair_bound": bound},
        "slow_share": {name: one.slow_share for name, one in found.items()},
        "imbalance": {name: one.imbalance for name, one in found.items()},
        "p95_batch": {name: one.p95_batch for name, one in found.items()},
        "gap_closed": {
            name: (throughput[name] - prior) / (bound - prior)
            for name in ("grace", "ours")
            if name in throughput and prior is not None
        },
        "picked": {name: list(one.picked) for name, one in found.items()},
        "hbm_rows": {name: one.hbm_rows for name, one in found.items()},
    }


def _run(
    name: str, splits: Sequence[Split], rows: int, capacity: float, beta: float, seed: int
) -> Figures:
    """Run one entrant; rivals with clusters at their best of whole clusters and by row."""
    if name in ("none", "lru"):
        make = _most_read if name == "none" else _cached
        return figures(make(splits, rows, capacity), splits, beta)
    if name == "ours":
        return figures(_ours(splits, rows, capacity, beta), splits, beta)
    budgets = [int(capacity * split.test.num_items) for split in splits]
    found = [_ways(name, split, most, seed) for split, most in zip(splits, budgets, strict=True)]
    ways = [list(way) for way in zip(*found, strict=True)]
    tried = [_served(splits, way, rows, beta) for way in ways]
    return max(tried, key=lambda one: one.throughput)


@cache
def _ways(name: str, split: Split, most: int, seed: int) -> list[list[Entrant]]:
    """Fit a method to one table, in every way it may be placed; no machine is looked at yet."""
    if name in CLUSTERS:
        fitted = CLUSTERS[name](split, most, seed)
        return [entrants.of_clusters(fitted, whole) for whole in (False, True)]
    return [entrants.of_space(split, most, seed) if name == "space" else []]


@cache
def _choice(split: Split, options: PlanOptions) -> Choice:
    """Judge what a table could store, once for all machines."""
    return judge_all(Bags(split.train, split.fit, split.validation), options)


def _served(
    splits: Sequence[Split], own: Sequence[list[Entrant]], rows: int, beta: float
) -> Figures:
    """Serve with the best of the entrants and of rows only."""
    tables = [entrants.nothing(split) + part for split, part in zip(splits, own, strict=True)]
    return figures(serve(splits, tables, rows, beta), splits, beta)


def _most_read(splits: Sequence[Split], rows: int, capacity: float) -> list[Served]:
    """The rows that train bags read most are in HBM, as many as fit."""
    counts = np.concatenate([split.train.counts() for split in splits])
    in_hbm = np.zeros(counts.size, bool)
    in_hbm[np.argsort(-counts, kind="stable")[:rows]] = True
    ends = np.cumsum([split.test.num_items for split in splits])[:-1]
    return [
        served("most read rows", split, Stored.nothing(), mask)
        for split, mask in zip(splits, np.split(in_hbm, ends), strict=True)
    ]


def _cached(splits: Sequence[Split], rows: int, capacity: float) -> list[Served]:
    """An exact LRU cache for each table, of its share of the rows."""
    served_tables = []
    for split in splits:
        slots = int(capacity * split.test.num_items)
        hits = lru_found(split.test, slots, split.train)
        served_tables.append(Served("lru", slots, split.test.offsets_B1, hits))
    return served_tables


def _ours(splits: Sequence[Split], rows: int, capacity: float, beta: float) -> list[Served]:
    """What plans decide when bags arrive rewritten."""
    options = PlanOptions(budget=capacity, rewriting="ahead")
    specs, choices = [], []
    for number, split in enumerate(splits):
        num_rows, names = split.test.num_items, (f"f{number}",)
        specs.append(TableSpec("", f"t{number}", num_rows, DIM, "fp32", "sum", names, False))
        choices.append(_choice(split, options))
    maps = 4 * sum(spec.num_rows for spec in specs)
    tiers = (
        Tier("hbm", rows * specs[0].row_bytes + maps, 1e12),
        Tier("host", PLENTY, beta * 1e12),
    )
    planned = settle(specs, choices, MemoryModel("two memories", tiers, sector_bytes=1), options)
    tables = []
    for table, split in zip(planned, splits, strict=True):
        placed = table.placement
        in_hbm = np.zeros(placed.num_rows + placed.num_sums, bool)
        in_hbm[: placed.num_rows] = placed.originals == "hbm"
        in_hbm[placed.hot_items] = True
        in_hbm[placed.num_rows : placed.num_rows + placed.num_hbm_sums] = True
        stored = Stored.nothing() if table.sums is None else Stored.of(table.sums)
        label = f"{table.method} {table.parameter} sums={placed.num_sums}"
        tables.append(served(label, split, stored, in_hbm))
    return tables


@click.command(name="placement", help=__doc__)
@click.option(
    "--trace",
    "traces",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A trace (.npz); several are tables of one model.",
)
@click.option("--beta", type=click.FloatRange(min=0, min_open=True), default=0.1, show_default=True)
@click.option(
    "--capacity",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Rows in HBM, in tables of N rows.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--only",
    type=click.Choice(ENTRANTS),
    multiple=True,
    help="Entrants to run (default: all).",
)
@click.option(
    "--grid",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Every beta and capacity, each trace and mixtures of 2, 4 and 8; kept here, resumed.",
)
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write the grid's tables."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    traces: tuple[Path, ...],
    beta: float,
    capacity: float,
    seed: int,
    only: tuple[str, ...],
    out: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Parse, measure, print."""
    if out is not None:
        read = cache(lambda trace: split_bags(read_npz(trace), seed))

        def measure(cell: Cell) -> dict[str, Any]:
            """One cell of the grid; what was fitted for another machine is not fitted again."""
            tables = [read(path) for path in cell["traces"]]
            return placement(tables, cell["beta"], cell["capacity"], seed, cell["entrants"])

        result = run_grid(measure, traces, only or ENTRANTS, out)
        if markdown is not None:
            markdown.write_text(as_markdown(result["cells"]), encoding="utf-8")
        emit(result, as_json, "placement")
        return
    splits = [split_bags(read_npz(trace), seed) for trace in traces]
    result = placement(splits, beta, capacity, seed, only or ENTRANTS)
    given = {"traces": [trace.stem for trace in traces], "beta": beta, "capacity": capacity}
    emit({**given, "seed": seed, **result}, as_json, "placement")
