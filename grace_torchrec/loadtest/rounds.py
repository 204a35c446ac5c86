"""Rounds: every entrant takes its turn in every round, in random order, so a slow moment hits all.

Flow: Subject + settings -> rounds of loads -> *result*: medians over the rounds, and their spread.
A ratio is taken round by round; below 1 the first is faster, of throughput above 1.  Times are
milliseconds, throughput is right answers a second.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from grace_sharding.calibration import load_now
from grace_torchrec.errors import GraceError
from grace_torchrec.loadtest.entrants import Entrant, Models, engine_of, entrants
from grace_torchrec.loadtest.generator import Load, Measured
from grace_torchrec.loadtest.intervals import LEAST_ROUNDS, median_interval
from grace_torchrec.loadtest.notes import notes_of
from grace_torchrec.loadtest.processes import Rig
from grace_torchrec.loadtest.subject import Subject
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.timing import Samples

FIGURES = ("p50", "p95", "p99", "service_p50", "service_p95", "service_p99", "throughput")


@dataclass(frozen=True)
class Settings:
    """How much is asked, and how.

    Attributes:
        clients: Client counts of the closed loop; one entry, ignored, for an open loop.
        names: Entrants.
        rounds: Rounds.
        requests: Requests of each entrant, client count and round.
        pattern: Of an open loop; None: closed loop.
        rate: Its requests a second.
        max_batch: Rows of a joined batch at most.
        inflight: Batches in flight of ours and of stock.
        workers: Batches in flight of entrants with several.
        streams: Streams at most of one query.
        tolerance: Largest absolute difference of a right answer.
        seed: Of all draws.
    """

    clients: tuple[int, ...] = (1, 8, 15, 22, 30)
    names: tuple[str, ...] = ()
    rounds: int = LEAST_ROUNDS
    requests: int = 1000
    pattern: str | None = None
    rate: float = 0.0
    max_batch: int = 256
    inflight: int = 1
    workers: int = 2
    streams: int = 4
    tolerance: float = 1e-3
    seed: int = 0


def load_test(
    subject: Subject,
    settings: Settings,
    recorder: Callable[[nn.Module], Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run all rounds; return the JSON object of ``serve-bench``.

    Args:
        subject: What is served and asked.
        settings: How.
        recorder: Makes the recorder of the entrant ``ours_recorded``.
        progress: Called with a line of text as the work goes on.

    Raises:
        GraceError: an entrant is unknown, or needs a recorder that is not given.
    """
    chosen = chosen_entrants(settings, recorder is not None)
    control = next((e for e in chosen.values() if e.processes > 1), None)
    models, load_before = Models(subject, settings.streams), load_now()
    clients = settings.clients if settings.pattern is None else (0,)
    found: dict[tuple[int, str], list[Measured]] = {}
    before: list[Measured] = []  # a round that is not counted, but for its errors
    slots = max(*clients, 512 if settings.pattern is not None else 2)
    draw = random.Random(settings.seed)
    with Rig(subject, slots, settings.tolerance, control) as rig:
        for turn in range(-1, settings.rounds):  # the round before the first is not counted
            for count in clients:
                names = draw.sample(list(chosen), len(chosen))
                for name in names:
                    progress(f"round {turn + 1}: {name}, {count or settings.pattern}")
                    seed = settings.seed + 1000 * (turn + 1) + count  # all are asked the same
                    load = _load(settings, count, chosen[name], seed, short=turn < 0)
                    with engine_of(chosen[name], models, recorder) as engine:
                        measured = rig.measure(engine, load)
                    kept = before if turn < 0 else found.setdefault((count, name), [])
                    kept.append(measured)
    result = _result(subject, settings, clients, list(chosen), found)
    result["errors"] += sum(measured.errors for measured in before)
    result["machine"] = {"cores": os.cpu_count() or 0, "load_before": load_before}
    result["notes"] = notes_of(result)
    return result


def chosen_entrants(settings: Settings, recorder: bool) -> dict[str, Entrant]:
    """Return the entrants that are asked for; to call before what takes long.

    Args:
        settings: Names them.
        recorder: Whether there is one.

    Raises:
        GraceError: an entrant is unknown, or needs a recorder that is not given.
    """
    known = entrants(settings.max_batch, settings.inflight, settings.workers)
    names = settings.names or tuple(name for name, one in known.items() if one.by_default)
    for name in names:
        if name not in known:
            raise GraceError(f"serve-bench: no entrant {name!r}; there are {', '.join(known)}")
        if known[name].recorded and not recorder:
            raise GraceError(f"serve-bench: entrant {name!r} needs a recorder; pass --recorder")
    return {name: known[name] for name in names}


def _load(settings: Settings, clients: int, entrant: Entrant, seed: int, *, short: bool) -> Load:
    """Return the load of one turn."""
    requests = max(20, settings.requests // 10) if short else settings.requests
    return Load(
        requests, warmup=max(2 * clients, requests // 20), clients=clients,
        sockets=tuple(range(entrant.processes)), pattern=settings.pattern or "poisson",
        rate=settings.rate, seed=seed,
    )  # fmt: skip


def _result(
    subject: Subject,
    settings: Settings,
    clients: Sequence[int],
    names: Sequence[str],
    found: Mapping[tuple[int, str], list[Measured]],
) -> dict[str, Any]:
    """Return medians, spreads and ratios."""
    cells: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    for count in clients:
        label = str(count) if count else str(settings.pattern)
        figures = {name: _figures(found[count, name]) for name in names}
        cells[label] = {name: _cell(found[count, name], figures[name]) for name in names}
        ratios[label] = _ratios(figures)
    everything = [measured for cell in found.values() for measured in cell]
    last = ratios[label]
    return {
        "subject": subject.name,
        "clients": cells,
        "ratios": ratios,
        "p99_ratio": last.get("ours/stock", {}).get("p99", {}).get("median"),
        "errors": sum(measured.errors for measured in everything),
        "requests": settings.requests * len(everything),
        "rounds": settings.rounds,
        "rounds_for_an_interval": LEAST_ROUNDS,
        "pattern": settings.pattern,
        "rate": settings.rate,
        "settings": {
            "max_batch": settings.max_batch,
            "inflight": settings.inflight,
            "workers": settings.workers,
            "threads": torch.get_num_threads(),
            "rows": form_of(subject.requests[0]).rows,
            "tolerance": settings.tolerance,
        },
    }


def _figures(rounds: Sequence[Measured]) -> dict[str, Samples]:
    """Return each figure over the rounds."""
    columns: dict[str, list[float]] = {name: [] for name in FIGURES}
    for one in rounds:
        for prefix, seconds in (("", one.latency_s), ("service_", one.service_s)):
            marks = np.percentile(seconds, [50, 95, 99]) * 1e3 if seconds.size else [np.nan] * 3
            for mark, value in zip(("p50", "p95", "p99"), marks, strict=True):
                columns[prefix + mark].append(float(value))
        columns["throughput"].append(one.latency_s.size / one.span_s)
    return {name: Samples(np.array(values)) for name, values in columns.items()}


def _cell(rounds: Sequence[Measured], figures: Mapping[str, Samples]) -> dict[str, Any]:
    """Return what the JSON object says of one entrant under one load."""
    cell: dict[str, Any] = {name: _told(samples.median) for name, samples in figures.items()}
    cell["spread"] = {
        name: [_told(samples.q20), _told(samples.q80)] for name, samples in figures.items()
    }
    for name in ("rejected", "errors", "failed", "wrong", "lost"):
        cell[name] = sum(getattr(one, name) for one in rounds)
    cell["largest_difference"] = max(one.largest_difference for one in rounds)
    cell["answered"] = min(one.latency_s.size for one in rounds)
    return cell


def _ratios(figures: Mapping[str, Mapping[str, Samples]]) -> dict[str, Any]:
    """Return the ratios that are asked about: below 1 the first is faster."""
    wanted = [(name, "stock") for name in figures if name != "stock"]
    wanted += [(name, "plain") for name in ("batching", "sums", "streams", "ours")]
    wanted.append(("ours_recorded", "ours"))
    return {
        f"{name}/{base}": {
            figure: _interval(figures[name][figure].over(figures[base][figure]))
            for figure in FIGURES
        }
        for name, base in dict.fromkeys(wanted)
        if name in figures and base in figures
    }


def _interval(ratio: Samples) -> dict[str, float | None]:
    """Return median and spread of a ratio, and the interval of the median where there is one."""
    low, high = median_interval(ratio.values_R) or (None, None)
    told = {**ratio.summary(), "low": low, "high": high}
    return {name: None if value is None else _told(value) for name, value in told.items()}


def _told(value: float) -> float | None:
    """Return a figure with four digits; None where no request was answered: JSON knows no NaN."""
    return round(value, 4) if np.isfinite(value) else None
