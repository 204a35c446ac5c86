"""Rows of the scoreboard: one for every figure, table and printed number of the two papers.

Flow: ``bench/papers.toml`` -> *PrintedRow* -> measuring, joining.  The file holds what the papers
print and how ours is obtained; it holds no value of ours (those are in ``bench/data/papers.json``).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grace_torchrec.errors import GraceError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

FILE = Path(__file__).parents[1] / "papers.toml"
PAPERS = ("GRACE", "RecOS")
MEASURED = ("measured", "modelled", "simulated")  # by a command that runs without a GPU
HOWS = (*MEASURED, "needs_gpu", "out_of_scope")


@dataclass(frozen=True)
class PrintedRow:
    """One printed figure.

    Attributes:
        id: Unique name.
        paper: One of ``PAPERS``.
        where: Place in the paper.
        what: What the figure is.
        printed: As the paper prints it; empty where its text has no number.
        unit: Of both values.
        how: One of ``HOWS``.
        reason: Why ours differs, or why there is none.
        command: Command that gives ours; ``TRACES`` stands for a folder of traces.
        values: Label -> path of a value in the command's JSON object, keys joined by dots; the
            label of a single value is empty.
        over: Path of a value that every value is divided by; empty: none is.
        over_command: Command of ``over``; empty: the same.
        times: Factor of every value.
        less: Subtracted from every value after that, 1 for "percent more".
        timed: Whether the values are times, which depend on what else the machine does.
        on: Input of ours: the traces or models.
    """

    id: str
    paper: str
    where: str
    what: str
    printed: str
    unit: str
    how: str
    reason: str
    command: str = ""
    values: dict[str, str] = field(default_factory=dict)
    over: str = ""
    over_command: str = ""
    times: float = 1.0
    less: float = 0.0
    timed: bool = False
    on: str = ""

    def __post_init__(self) -> None:
        """Check the words once."""
        if self.paper not in PAPERS or self.how not in HOWS:
            raise GraceError(
                f"papers.toml, {self.id}: paper {self.paper!r}, how {self.how!r}; give one of "
                f"{', '.join(PAPERS)} and one of {', '.join(HOWS)}"
            )
        if not self.reason:
            raise GraceError(
                f"papers.toml, {self.id}: no reason; say why ours differs or is missing"
            )
        if self.is_measured != bool(self.values) or (self.is_measured and not self.command):
            raise GraceError(
                f"papers.toml, {self.id}: {self.how} rows and no others take a value of a command; "
                "give both or neither"
            )

    @property
    def is_measured(self) -> bool:
        """Whether a command without a GPU gives a value."""
        return self.how in MEASURED

    def paths(self) -> dict[str, list[str]]:
        """Return the paths that are read from the JSON object of each command."""
        read = {self.command: list(self.values.values())} if self.values else {}
        if self.over:
            read.setdefault(self.over_command or self.command, []).append(self.over)
        return read

    def ours(self, found: Mapping[str, Mapping[str, float]]) -> float | dict[str, float] | None:
        """Return ours from measured values by command and path; None where one is missing."""
        read = self.paths()
        if not read or any(path not in found.get(of, {}) for of in read for path in read[of]):
            return None
        unit = found[self.over_command or self.command][self.over] if self.over else 1.0
        values = {
            label: found[self.command][path] / unit * self.times - self.less
            for label, path in self.values.items()
        }
        return values[""] if set(values) == {""} else values

    def spread(
        self, found: Mapping[str, Mapping[str, tuple[float, float]]]
    ) -> dict[str, tuple[float, float]]:
        """Return q20 and q80 of ours by label, those that were kept; none of a quotient of two values."""
        kept = {} if self.over else found.get(self.command, {})
        return {
            label: (low * self.times - self.less, high * self.times - self.less)
            for label, path in self.values.items()
            if path in kept
            for low, high in [kept[path]]
        }


def load_rows(path: Path = FILE) -> list[PrintedRow]:
    """Return all rows in the order of the file.

    Raises:
        GraceError: a row has an unknown field, a wrong word or an id that is taken.
    """
    rows: dict[str, PrintedRow] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["row"]:
        row = _row(entry)
        if row.id in rows:
            raise GraceError(f"papers.toml: the id {row.id} is there twice; rename one")
        rows[row.id] = row
    return list(rows.values())


def _row(entry: dict[str, Any]) -> PrintedRow:
    """Return a row of the file; ``value`` is short for one value without a label."""
    given = dict(entry)
    value = given.pop("value", None)
    if value is not None:
        given["values"] = {"": value}
    try:
        return PrintedRow(**given)
    except TypeError as error:
        raise GraceError(f"papers.toml, {entry.get('id')}: {error}") from error
