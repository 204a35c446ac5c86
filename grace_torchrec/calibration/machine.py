"""Calibration of this machine: the rates of its memories, and what lookups cost where a CPU does them.

Flow: this machine -> *Calibration* -> memory model -> plans.  Memories are measured by
``grace_sharding.calibration``, which knows no lookups; those of a CPU are timed by lookup_costs.py.
"""

from dataclasses import replace

from grace_sharding.calibration import HOST_TABLE_BYTES, Calibration
from grace_sharding.calibration import calibrate as calibrate_memories
from grace_torchrec.errors import GraceError

TABLES = 3  # as large as one far table are two, the sums of one of them, and bags, together


def calibrate(row_bytes: int = 256, table_bytes: int = HOST_TABLE_BYTES) -> Calibration:
    """Measure this machine.

    Args:
        row_bytes: Bytes of the rows that are gathered, a multiple of 4.
        table_bytes: Bytes of the tables that are read; large enough that no cache holds them, else
            ``.unmeasured`` says so. Without a GPU three times as much memory is taken.

    Returns:
        The rates of its memories; without a GPU also what one core takes for a lookup
        (``.memory.lookup_costs``), or in ``.unmeasured`` why that could not be measured.

    Raises:
        MemoryModelError: ``row_bytes`` or ``table_bytes`` is out of range.
    """
    found = calibrate_memories(row_bytes, table_bytes)
    if found.memory.hbm is not None:
        return found  # lookups run on the GPU
    need, free = TABLES * table_bytes, found.memory.host.num_bytes
    if free < need:
        told = f"costs of lookups: they need {need:,} bytes of free memory, there are {free:,}"
        return replace(found, unmeasured=(*found.unmeasured, told))
    try:
        from grace_torchrec.calibration.lookup_costs import measure_lookups

        timed = measure_lookups(table_bytes)
    except (ImportError, GraceError, MemoryError, RuntimeError) as error:  # torch has no room, too
        return replace(found, unmeasured=(*found.unmeasured, f"costs of lookups: {error}"))
    cache_bytes = found.memory.cache_bytes or 0
    if table_bytes <= cache_bytes:
        told = f"rows far from the cache: {table_bytes:,} bytes fit into its {cache_bytes:,}"
        found = replace(found, unmeasured=(*found.unmeasured, told))
    return replace(
        found,
        memory=replace(found.memory, lookup_costs=timed.costs),
        lookup_ns=timed.ns_per_id,
        unsteady=(*found.unsteady, *timed.unsteady),
    )
