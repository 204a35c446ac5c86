"""Versions: plan documents of older schemas, read as those of today.

Flow: plan.json as it was written -> *today's keys* -> parsing.  What an older plan did not tell is
written as not known; what it decided stays.

Schema 1 (before several methods): method ``grace`` only, its size limit chosen by cut and not told;
no curve, no cuts of candidates, no reads of sums; extra bytes without the sets kept for rebuilding.
Schemas 1 and 2: the time of the stock table, not in which memory it is spent.
They are plans for one device only: no sharding.
Schemas 1 to 3: no caches and no launches of the machine, so gains of tables that a cache holds were claimed.
Schemas 1 to 4: no costs of lookups on a CPU.
"""

from collections.abc import Mapping
from typing import Any

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.held import Extra

SCHEMA = 5
OLDEST = 1
NEW_IN = {"cache_bytes": 4, "launch_s": 4, "lookup_costs": 5}  # keys of a memory
SAME_TIME = 1e-6  # relative: times that differ by less are one time


def document_of_today(document: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return a whole document with today's keys; its parts stay as they are."""
    return {"sharding": None, **document} if schema < 3 else dict(document)


def memory_of_today(document: Mapping[str, Any], schema: int, where: str) -> dict[str, Any]:
    """Return the memory of a plan with today's keys.

    Raises:
        GraceError: it holds keys that its schema did not know.
    """
    unknown = dict.fromkeys(key for key, first in NEW_IN.items() if schema < first)
    if early := unknown.keys() & document.keys():
        odd = ", ".join(repr(name) for name in sorted(early))
        raise GraceError(f"{where}: {odd} unknown in schema {schema}; make the plan again")
    return {**unknown, **document}


def options_of_today(document: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return the options of a plan with today's keys."""
    return {"objective": "cut", **document} if schema == 1 else dict(document)


def table_of_today(entry: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return the entry of a table with today's keys; its predictions stay as they are."""
    if schema > 1:
        return dict(entry)
    code = "clusters" if entry.get("verdict") == "use" else None
    return {"parameter": "", "code": code, "cuts": {}, "curve": [], **entry}


def prediction_of_today(
    document: Mapping[str, Any], extra: Extra, row_bytes: int, memory: MemoryModel, schema: int
) -> dict[str, Any]:
    """Return the predictions of a table with today's keys.

    Args:
        document: As written; ``ids``, ``extra_bytes`` and ``stock_s`` are numbers.
        extra: What the table stores.
        row_bytes: Bytes of one of its rows.
        memory: The machine of the plan.
        schema: That of the plan.
    """
    if schema > 2:
        return dict(document)
    kept = dict(document)
    if schema == 1:
        kept["kept_bytes"] = extra.kept_bytes
        kept["extra_bytes"] += extra.kept_bytes
    all_bytes = kept["ids"] * memory.read_bytes(row_bytes)
    return _stock_times(kept.pop("stock_s"), all_bytes, memory) | kept


def _stock_times(stock_s: float, all_bytes: int, memory: MemoryModel) -> dict[str, float]:
    """Return what a stock table keeps each memory busy, by its slower memory.

    One that was whole in HBM took the time of all its bytes there; any other was in host memory, the
    rest of its bytes in a cache in HBM.
    """
    hbm = memory.hbm
    if hbm is None:
        return {"stock_hbm_s": 0.0, "stock_host_s": stock_s}
    whole_s = all_bytes / hbm.bytes_per_s
    if abs(stock_s - whole_s) <= SAME_TIME * whole_s:
        return {"stock_hbm_s": stock_s, "stock_host_s": 0.0}
    cached_s = (all_bytes - stock_s * memory.host.bytes_per_s) / hbm.bytes_per_s
    few = cached_s <= SAME_TIME * stock_s  # all in host memory, within rounding
    return {"stock_hbm_s": 0.0 if few else min(cached_s, stock_s), "stock_host_s": stock_s}
