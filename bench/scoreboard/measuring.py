"""Measuring: rows' commands run in processes of their own, the values kept in one file.

Flow: rows -> commands, each once -> values by path -> ``bench/data/papers.json``.  The file is
replaced whole after every command, so a run that is stopped keeps what it has.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.scoreboard.rows import PrintedRow
from grace_torchrec.errors import GraceError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "bench" / "data" / "papers.json"
TRACES = "TRACES"
Document = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a command gave.

    Attributes:
        date: Day of the run.
        busy: Whether more processes than processors were at work; only for commands that print
            their machine, whose figures are times.
        values: Path -> value.
        spreads: Path -> q20 and q80 over the rounds, for values whose command prints them.
    """

    date: str
    busy: bool = False
    values: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, tuple[float, float]] = field(default_factory=dict)


def load_results(path: Path = FILE) -> dict[str, Result]:
    """Return the results by command; none where there is no file."""
    if not path.is_file():
        return {}
    return {
        command: Result(**entry)
        for command, entry in json.loads(path.read_text(encoding="utf-8")).items()
    }


def save_results(results: dict[str, Result], path: Path = FILE) -> None:
    """Replace the file: a line for each command, in alphabetical order."""
    lines = [
        f"{json.dumps(command)}: {json.dumps(asdict(result), allow_nan=False)}"
        for command, result in sorted(results.items())
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def wanted(rows: Iterable[PrintedRow], results: dict[str, Result], again: bool) -> list[str]:
    """Return the commands to run, each once, in the order of the rows.

    Args:
        rows: Rows that are asked for.
        results: What is known.
        again: Also run commands all of whose values are known.
    """
    commands: dict[str, None] = {}
    for row in rows:
        for command, paths in row.paths().items():
            known = results[command].values if command in results else {}
            if again or not set(paths) <= set(known):
                commands[command] = None
    return list(commands)


def measure(
    rows: Sequence[PrintedRow],
    commands: Sequence[str],
    traces: Path | None,
    *,
    path: Path = FILE,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run commands and keep the values that any row reads from them; results of no row are dropped.

    Args:
        rows: All rows.
        commands: Commands to run, those of rows.
        traces: The folder that stands for ``TRACES``.
        path: The file of results.
        say: Told which command runs.

    Raises:
        GraceError: a command needs traces and none were given, fails, or lacks a value.
    """
    if traces is None and any(TRACES in command for command in commands):
        raise GraceError("papers: a command needs real traces; give --traces DIR")
    read = {command for row in rows for command in row.paths()}
    results = {name: result for name, result in load_results(path).items() if name in read}
    for number, command in enumerate(commands, 1):
        say(f"{number} of {len(commands)}: {command}")
        results[command] = result_of(command, rows, run(command, traces))
        save_results(results, path)


def run(command: str, traces: Path | None) -> Document:
    """Run a command of a row; return the JSON object on its last line.

    Raises:
        GraceError: the command fails or prints no object.
    """
    folder = str(traces.resolve()) if traces is not None else TRACES
    parts = [part.replace(TRACES, folder, 1) for part in shlex.split(command)]
    call = [sys.executable, *parts[1:]]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.splitlines() or ["it printed nothing"])[-1]
        raise GraceError(f"papers: {command!r} ended with status {done.returncode}: {last}")
    try:
        document: Document = json.loads(lines[-1])
    except json.JSONDecodeError as error:
        raise GraceError(f"papers: {command!r} printed no JSON object: {error}") from error
    return document


def result_of(command: str, rows: Iterable[PrintedRow], document: Document) -> Result:
    """Return the values that rows read from what their command printed."""
    paths = dict.fromkeys(path for row in rows for path in row.paths().get(command, []))
    machine = document.get("machine", {})
    busy = machine.get("load", 0.0) > machine.get("cores", 1)
    today = datetime.now(timezone.utc).date().isoformat()
    spreads = {path: spread_at(document, path) for path in paths}
    return Result(
        today,
        busy,
        {path: value_at(document, path) for path in paths},
        {path: spread for path, spread in spreads.items() if spread is not None},
    )


def spread_at(document: Document, path: str) -> tuple[float, float] | None:
    """Return q20 and q80 of the value at ``path``, None where the command prints none.

    They stand beside a median, or beside any other value under its name and ``_spread``.

    >>> spread_at({"a": {"median": 2.0, "q20": 1.5, "q80": 3.0}}, "a.median")
    (1.5, 3.0)
    >>> spread_at({"a": 2.0, "a_spread": {"q20": 1.5, "q80": 3.0}}, "a")
    (1.5, 3.0)
    """
    head, _, name = path.rpartition(".")
    place = head if name in ("median", "median_s") else f"{path}_spread"
    try:
        return value_at(document, f"{place}.q20"), value_at(document, f"{place}.q80")
    except GraceError:
        return None


def value_at(document: Document, path: str) -> float:
    """Return the number at ``path``, keys and places in lists joined by dots.

    Raises:
        GraceError: there is none.

    >>> value_at({"rows": [{"ours": 6}], "a.b": 1}, "rows.0.ours")
    6.0
    """
    found: Any = document
    try:
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GraceError(f"papers: no value at {path!r} in the command's JSON") from error
    if not isinstance(found, int | float):
        raise GraceError(f"papers: {found!r} at {path!r} is no number")
    return float(found)
