"""What the stages of gpu_check.py share: how much is done, the clock, where results go, timing.

Flow: gpu_check.py makes a *Run* -> the stages say results into it.  Needs torch only.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


@dataclass(frozen=True)
class Sizes:
    """How much is done; ``dry`` is enough to run every line of arithmetic in the interpreter."""

    device: str
    clusters: int
    singles: int
    bags: int
    checked_bags: int
    gather_bytes: int
    host_bytes: int
    rounds: int
    input_sets: int


DONE, SAID_NO, NOT_ALL_RUN = 0, 1, 3  # exit codes; 2 is a wrong call

FULL = Sizes("cuda", 200_000, 3_000_000, 16_384, 512, 4 << 30, 1 << 30, 25, 4)
DRY = Sizes("cpu", 32, 60, 1, 1, 1 << 15, 1 << 14, 0, 1)


class Run:
    """Results so far, the clock, and where they go."""

    def __init__(self, sizes: Sizes, budget_s: float, folder: Path) -> None:
        self.sizes, self.budget_s = sizes, budget_s
        self.start = time.monotonic()
        self.lines: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "gpu_check.jsonl"
        self.file.write_text("", encoding="utf-8")

    def left_s(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.budget_s - (time.monotonic() - self.start)

    def say(self, stage: str, **values: Any) -> None:
        """Keep, print and write one result at once."""
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
        line = {"stage": stage, "at_s": round(time.monotonic() - self.start, 1)} | rounded
        self.lines.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def started(parser: argparse.ArgumentParser, options: argparse.Namespace, folder: str) -> Run:
    """Return the run that ``--dry-run``, ``--budget`` and ``--out`` ask for, or end with an error.

    Results go into ``folder`` where ``--out`` names no other; measured ones are not overwritten so.
    """
    if options.out is None and Path(folder).exists():
        parser.error(f"{folder} is there already: give -o {folder} to replace its results")
    if options.dry_run != (os.environ.get("TRITON_INTERPRET") == "1"):
        parser.error("--dry-run and TRITON_INTERPRET=1 go together")
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("no GPU here; try TRITON_INTERPRET=1 with --dry-run")
    return Run(DRY if options.dry_run else FULL, options.budget, options.out or Path(folder))


def run_stages(run: Run, stages: Iterable[tuple[Callable[[Run], None], float]]) -> int:
    """Run the stages that fit.

    Args:
        run: Receives the results.
        stages: Each with the least seconds that it needs.

    Returns:
        The exit code: 1 if a check said no or a stage broke; else 3 if a stage was left out for
        time, for then its checks said nothing; else 0.
    """
    unrun = 0
    for stage, needs_s in stages:
        name = getattr(stage, "__name__", str(stage))
        if run.left_s() < needs_s:
            unrun += 1
            run.say("left_out", what=f"{name}: {run.left_s():.0f} s left, {needs_s:.0f} s needed")
            continue
        try:
            stage(run)
        except Exception as error:  # the lease is short: the other stages must still run
            run.say("broken", what=name, error=f"{type(error).__name__}: {error}"[:500])
    if not all(line.get("ok", True) and line["stage"] != "broken" for line in run.lines):
        return SAID_NO
    return NOT_ALL_RUN if unrun else DONE


def median_us(sizes: Sizes, entrants: Mapping[Key, Callable[[int], Any]]) -> dict[Key, float]:
    """Time entrants in turn, each with input ``round % sets``; return median microseconds."""
    samples: dict[Key, list[float]] = {name: [] for name in entrants}
    for turn in range(sizes.rounds + sizes.input_sets):
        for name, entrant in entrants.items():
            us = _one_us(sizes, entrant, turn % sizes.input_sets)
            if turn >= sizes.input_sets or sizes.device == "cpu":  # the first ones compile and warm
                samples[name].append(us)
    return {name: statistics.median(values) for name, values in samples.items()}


def _one_us(sizes: Sizes, entrant: Callable[[int], Any], which: int) -> float:
    """Time one call, on the device's own clock where there is one."""
    if sizes.device == "cpu":
        begin = time.perf_counter()
        entrant(which)
        return (time.perf_counter() - begin) * 1e6
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    entrant(which)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e3


def pinned(sizes: Sizes, tensor: Tensor) -> Tensor:
    """Pin host memory; the dry run has only one memory."""
    return tensor.pin_memory() if sizes.device == "cuda" else tensor


def cuda_only(run: Run, stage: str) -> bool:
    """Return whether there is a GPU; say that the stage is left out where there is none."""
    if run.sizes.device == "cpu":
        run.say("left_out", what=f"{stage}: needs a GPU")
    return run.sizes.device == "cuda"
