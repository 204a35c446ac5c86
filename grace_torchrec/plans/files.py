"""Plan files: a plan as a folder, and every check that a plan read from disk must pass.

Flow: Plan -> ``plan.json`` + ``arrays.safetensors`` -> *Plan*.  Arrays of a table that stores
something: its sums (``sums.arrays``), their reads, its hot items.  The JSON is for people and for
diffs; a checksum over it tells whether it is still what was written.  Folders of older schemas are
read too (``plans.versions``).
Shapes: R sums, H hot rows.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import numpy.typing as npt

from grace_sharding.shards import Sharding
from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.parse import (
    PARTS,
    Arrays,
    arrays_fingerprint,
    only,
    parse_memory,
    parse_options,
    parse_table,
    part,
)
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.texts import check_texts, names, quoted
from grace_torchrec.plans.versions import OLDEST, SCHEMA, document_of_today
from grace_torchrec.sums.arrays import code_kind, parts_of, to_arrays

SOFTWARE = ("grace-torchrec", "numpy", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
CHECKSUMS = {"plan_sha256", "arrays_sha256"}
KEYS = {
    "schema", "software", "memory", "options", "tables", "profile_fingerprint", "sharding",
} | CHECKSUMS  # fmt: skip


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan folder whole or not at all.

    Raises:
        GraceError: ``path`` is something else than a plan folder, or cannot be written.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "software": _software(), **_describe(plan)}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for index, table in enumerate(plan.tables.values()):
        held = {**table_arrays(table), **_parts(table)}
        arrays |= {f"{index}.{name}": array for name, array in held.items()}
    artifact.write_folder(path, "plan", {**document, "plan_sha256": _sha256(document)}, arrays)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan folder and verify everything in it.

    Raises:
        GraceError: the folder is missing, damaged, or of a schema this version does not know.
    """
    document, arrays = artifact.read_folder(path, "plan")
    where = f"{path}/plan.json"
    check_texts(document, where)
    schema = part(document, "schema", int, where)
    if not OLDEST <= schema <= SCHEMA:
        told = quoted(repr(schema))
        raise GraceError(
            f"{where}: schema {told}, this version reads {OLDEST} to {SCHEMA}; plan again"
        )
    if document.get("plan_sha256") != _sha256(document):
        raise GraceError(f"{where}: was changed after it was written; make the plan again")
    document = document_of_today(document, schema)
    only(document, KEYS, where)
    part(document, "software", dict, where)
    memory = parse_memory(part(document, "memory", dict, where), f"{where}: memory", schema)
    options = parse_options(part(document, "options", dict, where), f"{where}: options", schema)
    tables: dict[str, TablePlan] = {}
    for index, entry in enumerate(part(document, "tables", list, where)):
        prefix = f"{index}."
        own: Arrays = {
            key.removeprefix(prefix): arrays.pop(key)
            for key in list(arrays)
            if key.startswith(prefix)
        }
        table = parse_table(entry, own, f"{where}: table {index}", memory, schema)
        if table.spec.key in tables:
            raise GraceError(f"{where}: table {table.spec.key} is there twice; make the plan again")
        tables[table.spec.key] = table
    if arrays:
        raise GraceError(f"{path}: holds arrays of no table ({names(arrays)}); make the plan again")
    profiled = part(document, "profile_fingerprint", str, where)
    return Plan(tables, memory, options, profiled, _sharding(document, where))


def plan_fingerprint(plan: Plan) -> str:
    """Short hash of everything a plan decides and predicts; equal plans have equal hashes."""
    parts = {key: found for key, table in plan.tables.items() if (found := _parts(table))}
    splits = {PARTS: {key: arrays_fingerprint(found) for key, found in parts.items()}}
    return _sha256({**_describe(plan), **(splits if parts else {})})[:16]


def check_plan_fits(plan: Plan, specs: Sequence[TableSpec]) -> None:
    """Refuse a plan that was not made for these tables.

    Args:
        plan: The plan.
        specs: Tables of the model (``table_specs(model)``).

    Raises:
        PlanMismatch: names the first table that differs, and both values.
    """
    in_model = {spec.key: spec for spec in specs}
    for key in [*plan.tables, *in_model]:
        if (key in plan.tables) != (key in in_model):
            has, lacks = ("plan", "model") if key in plan.tables else ("model", "plan")
            raise PlanMismatch(
                f"table {key!r} is in the {has} and not in the {lacks}; plan this model again"
            )
        planned, found = asdict(plan.tables[key].spec), asdict(in_model[key])
        for name, value in planned.items():
            if found[name] != value:
                raise PlanMismatch(
                    f"table {key!r} has {name} {found[name]!r} in the model, the plan was made for {value!r}; "
                    "plan this model again"
                )


def _sharding(document: dict[str, Any], where: str) -> Sharding | None:
    """Read which rank holds what, None where the plan was not made for ranks."""
    if document["sharding"] is None:
        return None
    try:
        return Sharding.from_json(part(document, "sharding", dict, where))
    except ValueError as error:
        raise GraceError(f"{where}: {quoted(str(error))}; make the plan again") from error


def table_arrays(table: TablePlan) -> dict[str, npt.NDArray[Any]]:
    """The arrays that a table needs on disk; none where nothing is stored."""
    if table.sums is None:
        return {}
    beside = {"hot_items": table.placement.hot_items, "sum_reads": table.sum_reads_R}
    return {**to_arrays(table.sums), **beside}


def _parts(table: TablePlan) -> dict[str, npt.NDArray[Any]]:
    """How masks of subsets split: beside the arrays, for older plans of the same subsets lack it."""
    parts = None if table.sums is None else parts_of(table.sums)
    return {} if parts is None else {PARTS: parts}


def _describe(plan: Plan) -> dict[str, Any]:
    """Everything of a plan as JSON values; arrays by their fingerprint."""
    tables = []
    for table in plan.tables.values():
        placed = asdict(table.placement)
        placed["num_hot_items"] = int(placed.pop("hot_items").size)
        tables.append(
            {
                "spec": asdict(table.spec),
                "spec_fingerprint": table.spec.fingerprint(),
                "arrays_fingerprint": arrays_fingerprint(table_arrays(table)),
                "verdict": table.verdict,
                "reason": table.reason,
                "method": table.method,
                "parameter": table.parameter,
                "code": code_kind(table.sums) if table.sums is not None else None,
                "cuts": dict(table.cuts),
                "curve": [asdict(point) for point in table.curve],
                "lookup": table.lookup,
                "lookup_reason": table.lookup_reason,
                "placement": placed,
                "predicted": asdict(table.predicted),
            }
        )
    described = {
        "profile_fingerprint": plan.profile_fingerprint,
        "memory": asdict(plan.memory),
        "options": asdict(plan.options),
        "tables": tables,
        "sharding": plan.sharding.to_json() if plan.sharding is not None else None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))  # tuples become lists, as on disk
    return plain


def _sha256(document: dict[str, Any]) -> str:
    """Hash a document without its checksums, independent of the order of keys."""
    kept = {key: value for key, value in document.items() if key not in CHECKSUMS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _software() -> dict[str, str]:
    """Installed versions, for people who meet the plan later."""
    versions = {}
    for name in SOFTWARE:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # noqa: PERF203
            continue
    return versions
