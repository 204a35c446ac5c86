"""traffic: how many row reads stored sums save on held-out bags, for one method and budget.

Flow: trace -> split -> a method is fitted on train bags -> test bags are rewritten and counted.
Deterministic but for the seconds.  Protocol: nothing is filtered, repeated ids count, N is the
largest id of the whole trace + 1 (or what the file says), at most floor(B * N) sums.
"""

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.inputs import load_trace
from bench.methods import METHODS
from bench.rivals import pair_oracle
from bench.run import emit
from bench.stored import dump, make_dump_folder
from grace_torchrec.sums.count_reads import reads_of
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import Split, split_bags, split_time
from grace_torchrec.traces.trace import Trace

BOUNDS: dict[str, Callable[[Trace], int]] = {"pair_oracle": pair_oracle.rows_read}


def traffic(
    split: Split, method: str, budget_share: float, seed: int, row_bytes: int, folder: Path | None
) -> dict[str, Any]:
    """Fit ``method`` and count its reads on the test bags.

    Args:
        split: Train and test bags.
        method: A key of METHODS or BOUNDS.
        budget_share: Budget in tables: at most ``floor(budget_share * N)`` sums.
        seed: Of methods that draw.
        row_bytes: Bytes of a stored row.
        folder: An existing folder for stored rows and rewritten test bags, or None.

    Raises:
        GraceError: the method refuses its input.
    """
    common = {
        "method": method,
        "num_items": split.test.num_items,
        "train_bags": split.train.num_bags,
        "test_bags": split.test.num_bags,
        "rows_before": split.test.num_ids,
        "test_bags_seen_in_train": bags_seen(split.test, split.train),
    }
    if method in BOUNDS:
        rows_after = BOUNDS[method](split.test)
        return {**common, **_nothing_stored(rows_after, split.test.num_ids)}
    jit_s = _compile(method, seed)
    budget = math.floor(budget_share * split.test.num_items)
    fitted = METHODS[method](split, budget, seed)
    stored, bags = fitted.stored, fitted.stored.rewrite(split.test)
    reads = reads_of(bags, split.test.num_items, stored.num_sums, split.test.num_ids)
    if folder is not None:
        dump(folder, stored, bags)
    return {
        **common,
        "budget_rows": budget,
        "cut": reads.cut,
        "rows_after": reads.rows_after,
        "extra_rows": stored.num_sums,
        "extra_bytes": stored.num_sums * row_bytes + stored.metadata_bytes,
        "metadata_bytes": stored.metadata_bytes,
        "build_s": fitted.build_s,
        "picked": fitted.picked,
        "select_s": fitted.select_s,
        "sums_for_95pct": reads.sums_for_95pct,
        "jit_s": jit_s,
    }


def bags_seen(test: Trace, train: Trace) -> int:
    """Return how many test bags stand in ``train`` with the same ids, whatever their order."""
    known = set(_contents(train))
    return sum(content in known for content in _contents(test) if content)


def given_split(fit: Trace, serve: Trace) -> Split:
    """Return the split of two given traces; the last fifth of ``fit`` is for validation."""
    num_items = max(fit.num_items, serve.num_items)
    train, test = fit.over(num_items), serve.over(num_items)
    keep = train.num_bags - train.num_bags // 5
    bags = np.arange(train.num_bags)
    return Split(train, train.take(bags[:keep]), train.take(bags[keep:]), test)


def _contents(trace: Trace) -> list[bytes]:
    """Return the sorted ids of each bag as bytes."""
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    ids = trace.ids_L[np.lexsort((trace.ids_L, bag_L))].astype(np.int64)
    ends = trace.offsets_B1.tolist()
    return [ids[a:b].tobytes() for a, b in itertools.pairwise(ends)]


def _compile(method: str, seed: int) -> float:
    """Run the method once on a small trace, so that compiling is in no other figure."""
    start = time.perf_counter()
    small = Trace.from_bags([[0, 1, 2], [1, 0]] * 6)
    METHODS[method](split_bags(small), 4, seed).stored.rewrite(small)
    return time.perf_counter() - start


def _nothing_stored(rows_after: int, rows_before: int) -> dict[str, Any]:
    """Return the fields of a bound, which stores nothing that could be counted."""
    return {
        "cut": 1 - rows_after / rows_before if rows_before else 0.0,
        "rows_after": rows_after,
        "extra_rows": 0,
        "extra_bytes": 0,
        "metadata_bytes": 0,
        "build_s": 0.0,
        "picked": None,
        "select_s": 0.0,
        "sums_for_95pct": None,
    }


def _load(
    trace: Path | None, fit: Path | None, serve: Path | None, sizes: str | None, how: str, seed: int
) -> Split:
    """Return the split that the options ask for."""
    ways = (trace is not None) + (fit is not None or serve is not None) + (sizes is not None)
    if ways != 1:
        raise click.UsageError(
            "give one of --trace F, --fit TRAIN --serve TEST, --generate ITEMS,USERS"
        )
    if fit is not None or serve is not None:
        if fit is None or serve is None:
            raise click.UsageError("--fit TRAIN and --serve TEST belong together")
        if how != "bags":
            raise click.UsageError(
                f"--split {how}: --fit and --serve are a split already; leave it out"
            )
        return given_split(read_npz(fit), read_npz(serve))
    whole = load_trace(trace, sizes, seed)
    return split_time(whole) if how == "time" else split_bags(whole, seed)


@click.command(name="traffic", help=__doc__)
@click.option("--trace", type=click.Path(path_type=Path), help="A trace (.npz), split here.")
@click.option("--fit", type=click.Path(path_type=Path), help="Train bags (.npz), with --serve.")
@click.option("--serve", type=click.Path(path_type=Path), help="Test bags (.npz), with --fit.")
@click.option("--generate", "sizes", metavar="ITEMS,USERS", help="A generated trace.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Sums, in tables of N rows.",
)
@click.option(
    "--method", type=click.Choice([*METHODS, *BOUNDS]), default="grace", show_default=True
)
@click.option(
    "--objective",
    type=click.Choice(["cut", "time"]),
    default="cut",
    show_default=True,
    help="What a method that chooses aims at; the methods of this case aim at the cut.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the split, and of methods that draw."
)
@click.option(
    "--split", "how", type=click.Choice(["bags", "time"]), default="bags", show_default=True
)
@click.option(
    "--row-bytes",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Bytes of a row.",
)
@click.option(
    "--dump",
    "folder",
    type=click.Path(path_type=Path),
    help="Write stored rows and rewritten test bags here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    trace: Path | None,
    fit: Path | None,
    serve: Path | None,
    sizes: str | None,
    budget: float,
    method: str,
    objective: str,
    seed: int,
    how: str,
    row_bytes: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Parse, measure, print."""
    if folder is not None and method in BOUNDS:
        raise click.UsageError(
            f"--dump: {method} is a bound and stores nothing that could be dumped"
        )
    if objective != "cut" and method == "auto":
        raise click.UsageError("--objective time: auto chooses for the cut here; leave it out")
    if folder is not None:
        make_dump_folder(folder)
    split = _load(trace, fit, serve, sizes, how, seed)
    result = traffic(split, method, budget, seed, row_bytes, folder)
    emit({**result, "objective": objective, "budget": budget, "seed": seed}, as_json, "traffic")
