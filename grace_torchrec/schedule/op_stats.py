"""OpStats: what each operator costs, measured, read from a profile or estimated.

Flow: CPU profile, torch.profiler, Nsight Systems, JSON, roofline -> *OpStats* -> Schedule.
Source: RecOS, IJCAI'25, section 3.2: the model weights database, found by the model's fingerprint;
grid size of an operator is the largest of its kernels (derived: the equation is not in the text).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.schedule.op_graph import OpGraph

FORMAT = 1


@dataclass(frozen=True)
class OpStat:
    """Costs of one operator.

    Attributes:
        time_us: Microseconds on the device.
        launch_us: Microseconds of the host thread that launches it.
        grid: Blocks of its largest kernel.
        bytes_out: Bytes of its output.
    """

    time_us: float
    launch_us: float = 0.0
    grid: int = 1
    bytes_out: int = 0


@dataclass(frozen=True)
class Timed:
    """How costs were measured: what a reader needs to trust them.

    Attributes:
        rounds: Timed rounds.
        least_us: Microseconds of the shortest round, all operators one after another.
        median_us: Of the median round.
        q20_us: That 20 % of the rounds stay under.
        q80_us: That 80 % of them stay under.
        unsteady: The rounds differ so much that the machine was busy with something else.
        load: Of the machine before, None where it does not say.
        cores: Of the machine.
    """

    rounds: int
    least_us: float
    median_us: float
    q20_us: float
    q80_us: float
    unsteady: bool
    load: float | None
    cores: int


@dataclass(frozen=True)
class OpStats:
    """Costs of all operators of one graph.

    Attributes:
        fingerprint: Of the graph they belong to.
        source: Where they come from: ``cpu``, ``cuda``, ``nsight``, ``roofline`` or ``json``.
        device: What they were measured on, or estimated for.
        stats: One for each operator, in order.
        timed: How they were measured; None where they were not, or it is not known.

    Raises:
        GraceError: a time is negative or not a number, or a grid is below one.
    """

    fingerprint: str
    source: str
    device: str
    stats: tuple[OpStat, ...]
    timed: Timed | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for place, stat in enumerate(self.stats):
            if not (0 <= stat.time_us < float("inf") and 0 <= stat.launch_us < float("inf")):
                raise GraceError(
                    f"op stats: operator {place} takes {stat.time_us} us, launch "
                    f"{stat.launch_us} us; give times of zero or more"
                )
            if stat.grid < 1 or stat.bytes_out < 0:
                raise GraceError(
                    f"op stats: operator {place} has grid {stat.grid}, {stat.bytes_out} bytes; "
                    "give a grid of one or more"
                )

    @property
    def times_us(self) -> list[float]:
        """Times on the device, in order."""
        return [stat.time_us for stat in self.stats]

    @property
    def grids(self) -> list[int]:
        """Grid sizes, in order."""
        return [stat.grid for stat in self.stats]

    def grid_share(self, at_most: int = 28) -> float:
        """Return the share of operators with a grid of ``at_most`` (Table 1's first column)."""
        return sum(grid <= at_most for grid in self.grids) / max(len(self.grids), 1)

    def check(self, graph: OpGraph) -> None:
        """Refuse a graph that these are not the costs of.

        Raises:
            PlanMismatch: fingerprint or length differ.
        """
        if self.fingerprint != graph.fingerprint() or len(self.stats) != len(graph.ops):
            raise PlanMismatch(
                f"op stats: made for graph {self.fingerprint} of {len(self.stats)} operators, "
                f"{graph.name!r} is {graph.fingerprint()} of {len(graph.ops)}; profile it anew"
            )

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        stats: Sequence[OpStat],
        source: str,
        device: str,
        timed: Timed | None = None,
    ) -> "OpStats":
        """Return costs that belong to ``graph``."""
        found = cls(graph.fingerprint(), source, device, tuple(stats), timed)
        found.check(graph)
        return found


@dataclass(frozen=True)
class CostFile:
    """A graph with its costs, as one JSON file.

    Attributes:
        graph: The operators.
        stats: Their costs.
        note: How they were made.
    """

    graph: OpGraph
    stats: OpStats
    note: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; one line an operator, so that differences can be read.

        Raises:
            GraceError: it cannot be written, as where its folder is missing.
        """
        ops = [
            json.dumps(vars(op) | asdict(stat))
            for op, stat in zip(self.graph.ops, self.stats.stats, strict=True)
        ]
        head: dict[str, Any] = {
            "format": FORMAT,
            "name": self.graph.name,
            "fingerprint": self.stats.fingerprint,
            "source": self.stats.source,
            "device": self.stats.device,
            "note": self.note,
        }
        if self.stats.timed is not None:
            head["timed"] = asdict(self.stats.timed)
        lines = ",\n  ".join(ops)
        text = json.dumps(head, indent=1)[:-2] + f',\n "ops": [\n  {lines}\n ]\n}}\n'
        try:
            artifact.write_file(path, text.encode())
        except OSError as error:
            raise GraceError(f"{path}: cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CostFile":
        """Read a file that :meth:`save` wrote.

        Raises:
            GraceError: it is missing, not such a file, or of another format.
            PlanMismatch: its costs are not those of its graph.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls._parse(document)
        except OSError as error:
            raise GraceError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, PlanMismatch):
                raise
            raise GraceError(f"{path}: not a cost file ({error}); write it again") from error

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> "CostFile":
        """Read the values of a cost file."""
        if document["format"] != FORMAT:
            raise GraceError(
                f"format {document['format']}, this version reads {FORMAT}; profile the model again"
            )
        names = set(OpStat.__dataclass_fields__)
        ops = [{k: v for k, v in op.items() if k not in names} for op in document["ops"]]
        graph = OpGraph.from_json({"name": document["name"], "ops": ops})
        stats = tuple(OpStat(**{k: op[k] for k in names}) for op in document["ops"])
        timed = Timed(**document["timed"]) if "timed" in document else None
        found = OpStats(
            document["fingerprint"], document["source"], document["device"], stats, timed
        )
        found.check(graph)
        return cls(graph, found, str(document["note"]))
