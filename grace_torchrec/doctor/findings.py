"""The values a diagnosis is made of; the command renders them, tests compare them."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["problem", "note"]


@dataclass(frozen=True)
class PackageRow:
    """One line of the table: what is installed beside what is known to work."""

    package: str
    found: str
    known_good: str
    fits: bool


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (``problem``) or worth knowing (``note``), and the lines that mend it."""

    code: str
    level: Level
    text: str
    fix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The table and the findings, problems first."""

    packages: tuple[PackageRow, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """No finding is a problem."""
        return all(finding.level != "problem" for finding in self.findings)
