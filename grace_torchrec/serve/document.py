"""Document: ``served.json`` of a served folder, written, and read as from a stranger.

Flow: Served -> *described* -> served.json -> *read_served* -> version, conversion and costs of the
operators with their schedule, checked.  Its checksum tells damage and edits by hand, not who wrote it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.numbers import is_count
from grace_torchrec.plans.options import BadIds
from grace_torchrec.schedule.kept import KeptSchedule
from grace_torchrec.schedule.op_stats import OpStat, OpStats, Timed
from grace_torchrec.serve.row_types import RowType
from grace_torchrec.serve.served import Conversion, Served, Target
from grace_torchrec.strict_files import read_json

NAME, WHAT = "served", "served model"  # stem of the file; what it is called in messages
SCHEMA = 2  # 1 has no schedule
CHECKSUM = "document_sha256"


@dataclass(frozen=True)
class ServedDocument:
    """What ``served.json`` says.

    Attributes:
        version: Of the rows.
        conversion: How the model was converted.
        stats: Costs of its operators, None where they were not scheduled.
        schedule: Their streams and order; None too in folders of schema 1.
        arrays_checksum: Of the arrays.
        script_sha256: Of the TorchScript archive; None for other targets.
    """

    version: int
    conversion: Conversion
    stats: OpStats | None
    schedule: KeptSchedule | None
    arrays_checksum: str
    script_sha256: str | None


def described(
    served: Served, version: int, arrays_checksum: str, script_sha256: str | None
) -> dict[str, Any]:
    """Return what is written, with its checksum; arguments as the fields of ServedDocument."""
    scheduled = served.scheduled
    stats = None if scheduled is None else scheduled.stats
    kept = None if scheduled is None else KeptSchedule.of(scheduled)
    document = {
        "schema": SCHEMA,
        "version": version,
        "conversion": asdict(served.conversion),
        "stats": None if stats is None else asdict(stats),
        "schedule": None if kept is None else asdict(kept),
        "arrays_checksum": arrays_checksum,
        "script_sha256": script_sha256,
    }
    return {**document, CHECKSUM: _sha256(document)}


def read_served(folder: Path) -> ServedDocument:
    """Read the document of a folder and check everything in it.

    Raises:
        GraceError: it is missing, damaged, of another schema, or says what cannot be.
    """
    file = folder / f"{NAME}.json"
    document = read_json(file, WHAT)
    if document.get("schema") not in (1, SCHEMA):
        raise GraceError(
            f"{file}: schema {document.get('schema')!r}, this version reads 1 to {SCHEMA}; convert the "
            "model again"
        )
    if document.pop(CHECKSUM, None) != _sha256(document):
        raise GraceError(f"{file}: was changed after it was written; save the model again")
    try:
        stats = document["stats"]
        kept = document["schedule"] if document["schema"] > 1 else None
        found = ServedDocument(
            document["version"],
            Conversion(**document["conversion"]),
            None if stats is None else _stats(stats),
            None if kept is None else _kept(kept),
            document["arrays_checksum"],
            document["script_sha256"],
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise GraceError(f"{file}: is not readable ({error}); save the model again") from error
    wrong = _wrong(found)
    if wrong:
        raise GraceError(f"{file}: {wrong} is not what a converted model has; save it again")
    return found


def _wrong(found: ServedDocument) -> str:
    """Return the name of the first value that cannot be, or nothing."""
    conversion, types = found.conversion, found.conversion.row_types
    checks = {
        "version": is_count(found.version),
        "target": conversion.target in get_args(Target),
        "row_types": isinstance(types, Mapping)
        and all(kind in get_args(RowType) for kind in types.values()),
        "streams": is_count(conversion.streams) and conversion.streams >= 1,
        "num_slots": conversion.num_slots in (1, 2),
        "bad_ids": conversion.bad_ids in get_args(BadIds),
        "strict": isinstance(conversion.strict, bool),
        "schedule": found.schedule is None or found.stats is not None,
        "arrays_checksum": isinstance(found.arrays_checksum, str),
        "script_sha256": isinstance(found.script_sha256, str | None),
    }
    return next((name for name, holds in checks.items() if not holds), "")


def _stats(document: Mapping[str, Any]) -> OpStats:
    """Return the costs of the operators."""
    stats = tuple(OpStat(**stat) for stat in document["stats"])
    timed = document.get("timed")  # folders of earlier releases lack it
    return OpStats(
        document["fingerprint"], document["source"], document["device"], stats,
        None if timed is None else Timed(**timed),
    )  # fmt: skip


def _kept(document: Mapping[str, Any]) -> KeptSchedule:
    """Return the schedule; JSON has lists where it has tuples."""
    parts: dict[str, Any] = {
        name: tuple(part) if isinstance(part, list) else part for name, part in document.items()
    }
    return KeptSchedule(**parts)


def _sha256(document: Mapping[str, Any]) -> str:
    """Hash JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
