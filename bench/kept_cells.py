"""Cells of a grid on disk: a line of JSON for each that is finished, so that a run goes on where it stopped.

Flow: a grid asks which cells this commit has measured -> measures the others -> adds each as it is done.
"""

import json
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def key_of(cell: Cell) -> str:
    """Return what tells cells apart."""
    return json.dumps(cell, sort_keys=True)


def read_cells(path: Path, commit: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a file that ``commit`` made, by key; a line that was cut off does not count."""
    found: dict[str, dict[str, Any]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry.get("commit") == commit:  # other code, other figures
                found[key_of(entry["cell"])] = entry
    return found


def add_cell(path: Path, entry: dict[str, Any]) -> None:
    """Add a finished entry, with its ``cell`` and ``commit``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
