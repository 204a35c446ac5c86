"""drift: cut over time of a plan that grows old, of one that is rebuilt live, and of none.

Flow: periods of bags -> the live part passes a TraceRecorder -> drift -> Refresher (plan, convert,
proof, flip) -> the held-out fifth of the period judges: ``stale`` is the plan of the first period,
``rebuilt`` what the Refresher serves, ``fresh`` a plan from all live bags, of this period where the
world changes and of all periods so far where histories grow, ``none`` the stock model.  Then the plan of one period from
samples of several sizes.  Generated: communities exchange items, then vanish, then come back.
A real trace is cut by the marks of its split, in time.  Cuts are exact; nothing is timed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from bench import drift_figure
from bench.live_model import TABLE, live_model, requests
from bench.run import emit
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.candidates import METHODS
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions, Rewriting
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.serve.drift import live_cut
from grace_torchrec.serve.refresh import Refresher
from grace_torchrec.traces.drifting import generate_periods, without_structure
from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.trace import Trace

MACHINE, DIM = "h200", 64
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
BAR = 0.01  # rebuilt below fresh
LEAST_BAGS = 100
WORLD = {"pooling": (10, 60)}


class Period(NamedTuple):
    """Bags of one period.

    Attributes:
        name: What it is.
        live: Bags that are served and may be sampled.
        test: Bags that judge.
    """

    name: str
    live: Trace
    test: Trace


class Settings(NamedTuple):
    """How bags are sampled and plans made.

    Attributes:
        options: Of all plans.
        max_bags: Of the recorder.
        half_life_bags: Of the recorder.
        seed: Of all draws.
        histories_grow: Later periods go on where earlier ones ended: ``fresh`` knows them all.
    """

    options: PlanOptions
    max_bags: int
    half_life_bags: float | None
    seed: int
    histories_grow: bool = False


def drift(periods: Sequence[Period], settings: Settings) -> dict[str, Any]:
    """Serve all periods one after the other; return what each plan cuts in each.

    Args:
        periods: The first one makes the plan that grows old.
        settings: See there.
    """
    num_items = periods[0].live.num_items
    model = live_model(num_items, DIM, settings.seed)
    recorder = _recorder(model, settings)
    example = (next(requests(periods[0].live)),)
    refresher = Refresher(
        model, None, recorder, MemoryModel.named(MACHINE), settings.options,
        example=example, least_bags=LEAST_BAGS,
    )  # fmt: skip
    rows, first = [], None
    for number, period in enumerate(periods):
        for batch in requests(period.live):
            recorder.observe(batch)
        before = refresher.plan
        record = refresher.refresh_now()
        if record.outcome == "failed":
            raise GraceError(f"drift: {period.name}: {record.error}")
        first = first or refresher.plan
        so_far = concatenate([one.live for one in periods[: number + 1]])
        fresh = [
            _cut(_plan(model, trace, settings), period.test) for trace in (period.live, so_far)
        ]
        told = record.drift
        rows.append({
            "period": period.name, "live_bags": period.live.num_bags,
            "test_ids": period.test.num_ids, "verdict_before": told,
            "live_cut_before": next(iter(record.live_cuts.values()), None),
            "before": _cut(before, period.test), "outcome": record.outcome,
            "predicted": next(iter(record.predicted_cuts.values()), 0.0),
            "stale": _cut(first, period.test), "rebuilt": _cut(refresher.plan, period.test),
            "fresh": fresh[settings.histories_grow], "fresh_of_period": fresh[0], "fresh_of_all": fresh[1], "none": 0.0,
        })  # fmt: skip
    return {
        "periods": rows,
        "worst_below_fresh": max(row["fresh"] - row["rebuilt"] for row in rows),
        "fell_back": [row["period"] for row in rows if row["outcome"] == "stock"],
        "sampling": sampling(periods[0], model, settings),
        "recorder_bytes": recorder.stats.bytes_held,
    }


def sampling(period: Period, model: Any, settings: Settings) -> list[dict[str, Any]]:
    """Return the held-out cut of plans made from samples of one period, by the size of the sample."""
    found = []
    for share in SHARES:
        most = max(LEAST_BAGS, round(share * period.live.num_bags))
        for how, recorder in (
            ("reservoir", _recorder(model, settings._replace(max_bags=most, half_life_bags=None))),
            ("share", TraceRecorder(model, share=share, max_overhead=None, max_bags=1 << 30, max_ids=1 << 30, seed=settings.seed)),
        ):  # fmt: skip
            for batch in requests(period.live):
                recorder.observe(batch)
            sample = recorder.profile().tables[TABLE].trace
            cut = _cut(_plan(model, sample, settings), period.test)
            row = {"how": how, "share": share, "bags": recorder.stats.bags_held, "cut": cut}
            found.append({**row, "bytes": recorder.stats.bytes_held})
    return found


def generated(items: int, bags: int, periods: int, moved: float, seed: int) -> list[Period]:
    """Return periods of one world: items move, then all structure is gone, then it is back."""
    traces = generate_periods(items, bags, periods + 1, seed, moved=moved, **WORLD)
    found = [_split(str(number), trace, seed) for number, trace in enumerate(traces[:-1])]
    found.append(_split("vanished", without_structure(traces[-2], seed), seed))
    return [*found, _split("back", traces[-1], seed)]


def by_marks(trace: Trace, seed: int) -> list[Period]:
    """Return a period for each mark of the split, in order.

    Raises:
        GraceError: the trace has no marks.
    """
    if trace.split_L is None or not trace.num_ids:
        raise GraceError(
            "drift: the trace has no marks (split) to cut it by; give one, or --generate"
        )
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    found = []
    for mark in np.unique(trace.split_L):
        kept = trace.split_L == mark
        lengths = np.bincount(bag_L[kept], minlength=trace.num_bags)
        ends = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
        found.append(_split(f"mark {mark}", Trace(ends, trace.ids_L[kept], trace.num_items), seed))
    return found


def _split(name: str, trace: Trace, seed: int) -> Period:
    """Hold out a random fifth."""
    order = np.random.default_rng(seed).permutation(trace.num_bags)
    live = trace.num_bags - trace.num_bags // 5
    return Period(name, trace.take(order[:live]), trace.take(order[live:]))


def _recorder(model: Any, settings: Settings) -> TraceRecorder:
    """Make a recorder."""
    return TraceRecorder(
        model,
        max_bags=settings.max_bags,
        max_ids=1 << 24,
        max_overhead=None,
        half_life_bags=settings.half_life_bags,
        seed=settings.seed,
    )


def _plan(model: Any, trace: Trace, settings: Settings) -> Plan:
    """Plan from given bags."""
    profile = Profile.from_trace(TABLE, trace, ("item",))
    return make_plan(table_specs(model), profile, MemoryModel.named(MACHINE), settings.options)


def _cut(plan: Plan | None, test: Trace) -> float:
    """Return what a plan saves of the reads of held-out bags."""
    return 0.0 if plan is None else live_cut(test, next(iter(plan.tables.values())).sums).cut


@click.command(name="drift", help=__doc__)
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), help="An .npz with split."
)
@click.option("--generate", "sizes", metavar="ITEMS,BAGS", help="Bags of each period.")
@click.option("--periods", type=click.IntRange(min=2), default=5, show_default=True)
@click.option("--moved", type=click.FloatRange(0, 1), default=0.25, show_default=True)
@click.option("--method", type=click.Choice(METHODS), multiple=True, default=("subsets",))
@click.option(
    "--rewriting",
    type=click.Choice(("ahead", "in_line")),
    default="ahead",
    show_default=True,
    help="How bags reach the model: a sum pays sooner where they come rewritten.",
)
@click.option(
    "--max-bags",
    type=click.IntRange(min=LEAST_BAGS),
    help="Default: 3/4 of a period; a trace: all.",
)
@click.option(
    "--half-life", type=float, help="In bags; default: an eighth of a period; a trace: none."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--figure", type=click.Path(path_type=Path), help="Draw the figures here, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    trace: Path | None, sizes: str | None, periods: int, moved: float, method: tuple[str, ...],
    rewriting: Rewriting, max_bags: int | None, half_life: float | None, seed: int, figure: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Parse, measure, print."""
    if (trace is None) == (sizes is None):
        raise click.UsageError("give one of --trace F, --generate ITEMS,BAGS")
    if figure is not None:
        drift_figure.check(figure)
    if trace is not None:
        parts = by_marks(read_npz(trace), seed)
        most, half = sum(part.live.num_bags for part in parts), None
    else:
        items, bags = _pair(sizes or "")
        parts = generated(items, bags, periods, moved, seed)
        most, half = bags * 3 // 4, bags / 8
    options = PlanOptions(methods=method, rewriting=rewriting)
    settings = Settings(options, max_bags or most, half_life or half, seed, trace is not None)
    result = drift(parts, settings)
    result |= {"source": os.path.basename(trace or "") or f"generated {sizes}", "bar": BAR,
               "max_bags": settings.max_bags, "half_life_bags": settings.half_life_bags,
               "methods": list(method), "rewriting": rewriting, "moved": None if trace else moved}  # fmt: skip
    if figure is not None:
        drift_figure.draw(result, figure)
    emit(result, as_json, "drift")


def _pair(size: str) -> tuple[int, int]:
    """Return items and bags of ``--generate``."""
    numbers = size.split(",")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--generate {size}: two whole numbers expected, as 5000,5000")
    return int(numbers[0]), int(numbers[1])
