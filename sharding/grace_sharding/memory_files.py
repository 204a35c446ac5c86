"""Memory files: a memory model as JSON, and the one word by which callers name a machine.

Flow: calibration -> *JSON file* -> ``plan --memory FILE``.  A file is a stranger: its keys and
values are checked, and an error names the file and what is wrong with it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grace_sharding.lookup_costs import LookupCosts, LookupCostsError
from grace_sharding.memory_tiers import (
    NO_HBM_BYTES,
    MemoryModel,
    MemoryModelError,
    Tier,
    machine_names,
)

SCHEMA = 1
OF_THE_DEVICE = ("cache_bytes", "launch_s")  # may be missing: then they are not known
MOST_BYTES = 1 << 20  # of a file that is read: no model is larger


def save_memory(
    memory: MemoryModel, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None
) -> None:
    """Write a memory model.

    Args:
        memory: What is written.
        path: The file; it is replaced.
        notes: How the numbers came about; kept, never read back.

    Raises:
        MemoryModelError: the file cannot be written.
    """
    document = {"schema": SCHEMA, **asdict(memory), "notes": dict(notes or {})}
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        aside.replace(target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise MemoryModelError(f"{path}: cannot be written ({error.strerror})") from error


def load_memory(path: str | os.PathLike[str]) -> MemoryModel:
    """Read a memory model.

    Raises:
        MemoryModelError: the file is missing, or is no memory model of this schema.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        document = json.loads(content.decode("utf-8")) if len(content) <= MOST_BYTES else None
    except OSError as error:
        raise MemoryModelError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise MemoryModelError(f"{path}: is no memory file, which is JSON; {_known()}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise MemoryModelError(f"{path}: is no memory model of schema {SCHEMA}; {_known()}")
    try:
        tiers = tuple(Tier(**tier) for tier in document["tiers"])
        machine = document["machine"]
        if not isinstance(machine, str):
            raise TypeError("machine is no text")
        device = {name: document.get(name) for name in OF_THE_DEVICE}  # files of earlier releases
        costs = document.get("lookup_costs")
        return MemoryModel(
            machine,
            tiers,
            document["uvm"],
            document["sector_bytes"],
            **device,
            lookup_costs=None if costs is None else LookupCosts(**costs),
        )
    except LookupCostsError as error:
        raise MemoryModelError(f"{path}: lookup_costs: {error}") from error
    except MemoryModelError as error:
        raise MemoryModelError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise MemoryModelError(f"{path}: lacks or mistypes {error}; calibrate again") from error


def memory_named(
    name: str, hbm_bytes: int | None = None, host_bytes: int | None = None
) -> MemoryModel:
    """Return a known machine, or the one in a file.

    Args:
        name: One of :func:`machine_names`, or the path of a file.
        hbm_bytes: Bytes of HBM that rows may take, instead of those of the machine.
        host_bytes: The same of host memory; 0 keeps all rows in HBM.

    Raises:
        MemoryModelError: neither a known machine nor a readable file.
    """
    if name in machine_names():
        return MemoryModel.named(name, hbm_bytes=hbm_bytes, host_bytes=host_bytes)
    if not Path(name).is_file():
        raise MemoryModelError(f"memory {name!r}: no file and no known machine; {_known()}")
    memory = load_memory(name)
    if hbm_bytes is not None and memory.hbm is None:
        raise MemoryModelError(f"{name}: the machine has no HBM; {NO_HBM_BYTES}")
    given = {"hbm": hbm_bytes, "host": host_bytes}
    rooms = [(tier, given[tier.name]) for tier in memory.tiers]
    tiers = (tier if own is None else replace(tier, num_bytes=own) for tier, own in rooms)
    return replace(memory, tiers=tuple(tiers))


def _known() -> str:
    """Say what a memory may be called."""
    return f"use one of {', '.join(machine_names())}, or a file of grace-torchrec calibrate"
