"""Memory tiers: how many bytes each memory of a machine holds and how fast it is read.

Flow: machine name or own numbers -> *MemoryModel* -> placement and predicted times.
Source: GRACE, ASPLOS'23 (rows live in HBM and in host memory, both are read at the same time, a
request is done when the slower of the two is done).  Rates of named machines are those of public
data sheets; ``machines.json`` says for each whether it is a peak or a usable rate, and where the
bytes of caches and the time of a launch are from.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from grace_sharding.errors import GraceError
from grace_sharding.lookup_costs import LookupCosts

TierName = Literal["hbm", "host"]
Uvm = Literal["managed", "host_mapped", "cached"]


NO_HBM_BYTES = "leave hbm_bytes out"  # the command line has its own words for it


class MemoryModelError(GraceError):
    """A machine or tier is unknown, or its numbers make no sense."""


@dataclass(frozen=True)
class Tier:
    """One memory.

    Attributes:
        name: ``hbm`` or ``host``.
        num_bytes: Bytes that embedding rows may take in it (0: nothing fits).
        bytes_per_s: Rate at which the device that pools reads rows from it.

    Raises:
        MemoryModelError: the name is unknown, bytes are negative, or the rate is not positive.
    """

    name: TierName
    num_bytes: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        """Check name, bytes and rate once."""
        if self.name not in get_args(TierName):
            raise MemoryModelError(f"tier {self.name!r}: unknown, use hbm or host")
        if not _is_int(self.num_bytes) or self.num_bytes < 0:
            raise MemoryModelError(
                f"tier {self.name}: num_bytes must be an integer >= 0, got {self.num_bytes!r}"
            )
        if not _is_rate(self.bytes_per_s):
            raise MemoryModelError(
                f"tier {self.name}: bytes_per_s must be a finite number > 0, got {self.bytes_per_s!r}"
            )


@dataclass(frozen=True)
class MemoryModel:
    """The memories of one machine; the host tier is always there, HBM may be missing.

    Attributes:
        machine: Name for people.
        tiers: One host tier, and at most one HBM tier.
        uvm: How the device reads host memory: ``managed`` pages, ``host_mapped`` (zero copy) or
            ``cached`` (a software cache in HBM).
        sector_bytes: Smallest read that a memory serves.
        cache_bytes: Last cache before the memory of the device that pools (the L2 of a GPU); None: not
            known. Rates of tiers say nothing about tables that it holds.
        launch_s: Seconds of one more short kernel on that device; None: not known. A gain that is
            less is none.
        lookup_costs: Of one core of a CPU, where that pools (no HBM); None: not known, and plans take
            those of the CPU, of two that were measured, on which sums gain less.

    Raises:
        MemoryModelError: tiers are missing or doubled, or a value is out of range.

    >>> round(MemoryModel.named("a40").beta, 3)
    0.036
    """

    machine: str
    tiers: tuple[Tier, ...]
    uvm: Uvm = "host_mapped"
    sector_bytes: int = 32
    cache_bytes: int | None = None
    launch_s: float | None = None
    lookup_costs: LookupCosts | None = None

    def __post_init__(self) -> None:
        """Check that the tiers make one machine; HBM comes first, whatever order they are given in."""
        names = [tier.name for tier in self.tiers]
        if not isinstance(self.tiers, tuple) or sorted(names) not in (["host"], ["hbm", "host"]):
            raise MemoryModelError(
                f"machine {self.machine}: tiers must be (host) or (hbm, host), got {names}"
            )
        set_ = object.__setattr__
        set_(self, "tiers", tuple(sorted(self.tiers, key=lambda tier: tier.name == "host")))
        if self.uvm not in get_args(Uvm):
            raise MemoryModelError(
                f"machine {self.machine}: uvm {self.uvm!r} unknown, use one of {get_args(Uvm)}"
            )
        if not _is_int(self.sector_bytes) or self.sector_bytes < 1:
            raise MemoryModelError(
                f"machine {self.machine}: sector_bytes must be an integer >= 1, got {self.sector_bytes!r}"
            )
        if self.cache_bytes is not None and not (
            _is_int(self.cache_bytes) and self.cache_bytes > 0
        ):
            raise MemoryModelError(
                f"machine {self.machine}: cache_bytes must be an integer >= 1 or left out, got "
                f"{self.cache_bytes!r}"
            )
        if self.launch_s is not None and not _is_rate(self.launch_s):
            raise MemoryModelError(
                f"machine {self.machine}: launch_s must be a finite number > 0 or left out, got "
                f"{self.launch_s!r}"
            )
        if self.lookup_costs is not None and not isinstance(self.lookup_costs, LookupCosts):
            raise MemoryModelError(
                f"machine {self.machine}: lookup_costs must be LookupCosts or left out, got "
                f"{self.lookup_costs!r}"
            )
        if self.lookup_costs is not None and "hbm" in names:
            raise MemoryModelError(
                f"machine {self.machine}: lookup_costs are those of a CPU, and a machine with HBM pools "
                "on its GPU; leave them out"
            )

    @classmethod
    def named(
        cls,
        machine: str,
        hbm_bytes: int | None = None,
        host_bytes: int | None = None,
        uvm: Uvm = "host_mapped",
    ) -> "MemoryModel":
        """Return a known machine; bytes given here replace those of its data sheet.

        Args:
            machine: One of :func:`machine_names`.
            hbm_bytes: Bytes of HBM that embedding rows may take (0 is allowed).
            host_bytes: Bytes of host memory that embedding rows may take.
            uvm: How the device reads host memory.

        Raises:
            MemoryModelError: the machine is unknown, or ``hbm_bytes`` is given for one without HBM.
        """
        if machine not in machine_names():
            raise MemoryModelError(
                f"machine {machine!r}: unknown, use one of {', '.join(machine_names())}"
            )
        sheet = _sheets()[machine]
        if hbm_bytes is not None and "hbm" not in sheet:
            raise MemoryModelError(f"machine {machine}: has no HBM; {NO_HBM_BYTES}")
        wanted = {"hbm": hbm_bytes, "host": host_bytes}
        names: tuple[TierName, ...] = ("hbm", "host") if "hbm" in sheet else ("host",)
        tiers = []
        for name in names:
            own = wanted[name]
            tiers.append(
                Tier(
                    name,
                    sheet[name]["num_bytes"] if own is None else own,
                    sheet[name]["bytes_per_s"],
                )
            )
        device = sheet.get("device", {})
        return cls(
            machine,
            tuple(tiers),
            uvm,
            cache_bytes=device.get("cache_bytes"),
            launch_s=device.get("launch_s"),
        )

    @property
    def hbm(self) -> Tier | None:
        """HBM, if the machine has it."""
        return next((tier for tier in self.tiers if tier.name == "hbm"), None)

    @property
    def host(self) -> Tier:
        """Host memory."""
        return next(tier for tier in self.tiers if tier.name == "host")

    @property
    def beta(self) -> float:
        """Bandwidth of host over HBM (1 where there is one memory)."""
        return self.host.bytes_per_s / self.hbm.bytes_per_s if self.hbm else 1.0

    def read_bytes(self, row_bytes: int) -> int:
        """Bytes that one read of ``row_bytes`` moves: whole sectors."""
        return -(-row_bytes // self.sector_bytes) * self.sector_bytes

    def tier_s(self, bytes_by_tier: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds that each named tier is busy with its bytes.

        Raises:
            MemoryModelError: a tier is named that this machine lacks, or bytes are negative.
        """
        known = {tier.name: tier for tier in self.tiers}
        for name, num_bytes in bytes_by_tier.items():
            if name not in known:
                raise MemoryModelError(
                    f"machine {self.machine}: has no tier {name!r}, only {', '.join(known)}"
                )
            if not 0 <= num_bytes < math.inf:
                raise MemoryModelError(
                    f"machine {self.machine}: tier {name} cannot read {num_bytes!r} bytes"
                )
        return {
            tier.name: bytes_by_tier[tier.name] / tier.bytes_per_s
            for tier in self.tiers
            if tier.name in bytes_by_tier
        }

    def time_s(self, bytes_by_tier: Mapping[str, float]) -> float:
        """Return the seconds of a request: the slowest tier, never the sum (both run at once)."""
        return max(self.tier_s(bytes_by_tier).values(), default=0.0)


def machine_names() -> tuple[str, ...]:
    """Names that :meth:`MemoryModel.named` knows."""
    return tuple(_sheets())


@cache
def _sheets() -> dict[str, dict[str, dict[str, Any]]]:
    """Read ``machines.json`` once."""
    text = resources.files("grace_sharding").joinpath("machines.json").read_text(encoding="utf-8")
    sheets: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return sheets


def _is_int(value: object) -> bool:
    """Tell an integer from a bool, a float or a string."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rate(value: object) -> bool:
    """Tell a finite positive number from anything else."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
