"""Plan: per table what is stored, where it lives, how it is looked up, and why.

Flow: table specs + profile + options -> make_plan -> *Plan* -> modules, serve, views.
A plan is a frozen value; on disk it is a folder (:mod:`grace_torchrec.plans.files`).  What it is made
of, the decision for a table and its prediction, is imported from here as well.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.shards import Sharding
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.claims import claims_of, told_verdict
from grace_torchrec.plans.curve import CurvePoint
from grace_torchrec.plans.inner_tables import inner_tables
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.prediction import Prediction
from grace_torchrec.plans.table_plan import TableLookup, TablePlan, Verdict

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

__all__ = ["CurvePoint", "Plan", "PlanOptions", "Prediction", "TableLookup", "TablePlan", "Verdict"]


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Table key -> :class:`TablePlan`, and what it was made for.

    Attributes:
        tables: One entry for each table of the model, by :attr:`TableSpec.key`.
        memory: The machine the plan was made for.
        options: What the caller asked for.
        profile_fingerprint: Short hash of the profile the plan was made from.
        sharding: Which rank holds what, where the plan was made for ranks; ``memory`` is then that
            of all of them together.

    Raises:
        GraceError: a key names another table, the tables do not fit in ``memory``, or ``sharding``
            is of other tables.
    """

    tables: Mapping[str, TablePlan]
    memory: MemoryModel
    options: PlanOptions = field(default_factory=PlanOptions)
    profile_fingerprint: str = ""
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        """Check that keys name their tables."""
        for key, table in self.tables.items():
            if key != table.spec.key:
                raise GraceError(f"plan: key {key!r} holds the table {table.spec.key!r}")
        for name in ("hbm", "host"):
            room = sum(tier.num_bytes for tier in self.memory.tiers if tier.name == name)
            need = sum(getattr(table.placement, name).bytes for table in self.tables.values())
            if need > room:
                raise GraceError(
                    f"plan: places {need:,} bytes in {name}, {self.memory.machine} has {room:,}"
                )
        if self.sharding is not None:
            inner = inner_tables(self.tables.values())
            shapes = {
                (each.path, each.name): (each.num_rows, each.table.spec.dim) for each in inner
            }
            try:
                self.sharding.check_tables(shapes)
            except ValueError as error:
                raise GraceError(f"plan: {error}") from error

    def __repr__(self) -> str:
        """Tables, verdicts and memories, on one line; ``inspect`` shows the rest."""
        claims = claims_of(self.tables.values(), self.memory).tables
        verdicts = Counter(told_verdict(table, claims[key]) for key, table in self.tables.items())
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        extra = sum(table.predicted.extra_bytes for table in self.tables.values())
        return (
            f"Plan({len(self.tables)} tables{': ' if counts else ''}{counts}; for "
            f"{self.memory.machine}; {extra:,} extra bytes)"
        )

    def sharding_plan(self, device: str = "cuda") -> "ShardingPlan":
        """Return what DistributedModelParallel takes as ``plan``, for the swapped model.

        Args:
            device: Type of the ranks' device, ``cuda`` or ``cpu``.

        Raises:
            GraceError: the plan was not made for ranks.
        """
        from grace_sharding.planner_stats import sharding_plan

        if self.sharding is None:
            raise GraceError(
                "plan: has no sharding; make it with grace_torchrec.plan(world_size=..)"
            )
        return sharding_plan(self.sharding, device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan folder whole or not at all; folders that are missing above it are made.

        Raises:
            GraceError: ``path`` is something else than a plan folder, or cannot be written.
        """
        from grace_torchrec.plans.files import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan folder and verify everything in it.

        Raises:
            GraceError: the folder is missing, damaged, or of a schema this version does not know.
        """
        from grace_torchrec.plans.files import load_plan

        return load_plan(path)
