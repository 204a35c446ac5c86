"""Versions: plan documents of older schemas, read as those of today.

Flow: plan.json as it was written -> *today's keys* -> parsing.  What an older plan did not tell is
written as not known; what it decided stays.

Schema 1 (before several methods): method ``grace`` only, its size limit chosen by cut and not told;
no curve, no cuts of candidates, no reads of sums; extra bytes without the sets kept for rebuilding.
Schemas 1 and 2: plans for one device only, so no sharding.
"""

from collections.abc import Mapping
from typing import Any

from grace_torchrec.plans.held import Extra

SCHEMA = 3
OLDEST = 1


def document_of_today(document: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return a whole document with today's keys; its parts stay as they are."""
    return {"sharding": None, **document} if schema < 3 else dict(document)


def options_of_today(document: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return the options of a plan with today's keys."""
    return {"objective": "cut", **document} if schema == 1 else dict(document)


def table_of_today(entry: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Return the entry of a table with today's keys; its predictions stay as they are."""
    if schema > 1:
        return dict(entry)
    code = "clusters" if entry.get("verdict") == "use" else None
    return {"parameter": "", "code": code, "cuts": {}, "curve": [], **entry}


def prediction_of_today(document: Mapping[str, Any], extra: Extra, schema: int) -> dict[str, Any]:
    """Return the predictions of a table with today's keys.

    Args:
        document: As written, ``extra_bytes`` an integer.
        extra: What the table stores.
        schema: That of the plan.
    """
    if schema > 1:
        return dict(document)
    extra_bytes = document["extra_bytes"] + extra.kept_bytes
    return {"kept_bytes": extra.kept_bytes, **document, "extra_bytes": extra_bytes}
