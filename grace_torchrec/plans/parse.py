"""Parse: JSON values and arrays of a plan folder into checked values, or one error.

Flow: plan.json + arrays -> *MemoryModel, PlanOptions, TablePlan*.  A file is a stranger: keys,
types and shapes are checked here, ranges and agreement by the values themselves.  No size that a
file merely claims is allocated.
Shapes: R sums, H hot rows.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse
from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.curve import CurvePoint
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Prediction, TablePlan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.texts import names, quoted
from grace_torchrec.plans.versions import (
    SCHEMA,
    memory_of_today,
    options_of_today,
    prediction_of_today,
    table_of_today,
)
from grace_torchrec.sums.arrays import from_arrays
from grace_torchrec.sums.stored_sums import StoredSums

Arrays = dict[str, npt.NDArray[Any]]
PARTS = "parts"  # how masks of subsets split: plans of earlier releases lack it
BESIDE_SUMS = ("hot_items", "sum_reads")
TEXTS = ("verdict", "reason", "method", "parameter", "lookup", "lookup_reason")
FINGERPRINTS = ("spec_fingerprint", "arrays_fingerprint")
TABLE_KEYS = {"spec", "placement", "predicted", "code", "cuts", "curve", *FINGERPRINTS, *TEXTS}
T = TypeVar("T")
V = TypeVar("V")


def part(document: Mapping[str, Any], name: str, kind: type[T], where: str) -> T:
    """Return one entry of a JSON object.

    Raises:
        GraceError: it is missing or of another type.
    """
    value = document.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GraceError(f"{where}: {name} is missing or no {kind.__name__}; make the plan again")
    return value


def only(document: Mapping[str, Any], wanted: Set[str], where: str) -> None:
    """Refuse a JSON object that has other keys than the wanted ones.

    Raises:
        GraceError: a key is missing or unknown.
    """
    if document.keys() != wanted:
        odd = names(document.keys() ^ wanted)
        raise GraceError(f"{where}: {odd} missing or unknown; make the plan again")


def arrays_fingerprint(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Short hash of the arrays of one table, by name."""
    return artifact.fingerprint(*(x for name in sorted(arrays) for x in (name, arrays[name])))


def parse_memory(document: Mapping[str, Any], where: str, schema: int = SCHEMA) -> MemoryModel:
    """Build the memory model.

    Raises:
        GraceError: a key or value is not what a plan holds.
    """
    document = memory_of_today(document, schema, where)
    part(document, "machine", str, where)
    tiers = []
    for tier in part(document, "tiers", list, where):
        if not isinstance(tier, dict):
            raise GraceError(f"{where}: a tier is no JSON object; make the plan again")
        tiers.append(_build(Tier, tier, where))
    costs = document.get("lookup_costs")
    if costs is not None:
        costs = _build(LookupCosts, part(document, "lookup_costs", dict, where), where)
    return _build(MemoryModel, document, where, tiers=tuple(tiers), lookup_costs=costs)


def parse_options(document: Mapping[str, Any], where: str, schema: int = SCHEMA) -> PlanOptions:
    """Build the options.

    Raises:
        GraceError: a key or value is not what a plan holds.
    """
    document = options_of_today(document, schema)
    lists = {name: tuple(part(document, name, list, where)) for name in ("methods", "size_limits")}
    return _build(PlanOptions, document, where, **lists)


def parse_table(
    entry: Any, arrays: Arrays, where: str, memory: MemoryModel, schema: int = SCHEMA
) -> TablePlan:
    """Build the plan of one table.

    Args:
        entry: Its JSON object.
        arrays: Its arrays by their own names.
        where: Place for messages.
        memory: The machine of the plan.
        schema: That of the plan.

    Raises:
        GraceError: anything in it is missing, of the wrong type or out of range, or parts
            contradict each other.
    """
    if not isinstance(entry, dict):
        raise GraceError(f"{where}: is no JSON object; make the plan again")
    entry = table_of_today(entry, schema)
    only(entry, TABLE_KEYS, where)
    described = part(entry, "spec", dict, where)
    features = tuple(part(described, "features", list, where))
    spec = _build(TableSpec, described, where, features=features)
    where = f"{where} ({spec.key})"
    parts = arrays.get(PARTS)
    arrays = {name: array for name, array in arrays.items() if name != PARTS}
    sealed = entry["spec_fingerprint"], entry["arrays_fingerprint"]
    if sealed != (spec.fingerprint(), arrays_fingerprint(arrays)):
        raise GraceError(f"{where}: does not match its fingerprints; make the plan again")
    texts: dict[str, Any] = {name: part(entry, name, str, where) for name in TEXTS}
    sums, hot_items, sum_reads_R = _parse_stored(entry, arrays, parts, spec, where, schema)
    placement = _parse_placement(part(entry, "placement", dict, where), hot_items, where)
    predicted = part(entry, "predicted", dict, where)
    part(predicted, "extra_bytes", int, where)
    if schema < 3:
        part(predicted, "ids", int, where)
        part(predicted, "stock_s", float, where)
    extra = extra_of(sums, placement)
    told = _checked(
        lambda: prediction_of_today(predicted, extra, spec.row_bytes, memory, schema), where
    )
    cuts = part(entry, "cuts", dict, where)
    curve = _parse_curve(part(entry, "curve", list, where), where)
    prediction = _build(Prediction, told, where)
    return _checked(
        lambda: TablePlan(
            spec=spec,
            sums=sums,
            placement=placement,
            predicted=prediction,
            cuts=cuts,
            curve=curve,
            sum_reads_R=sum_reads_R,
            **texts,
        ),
        where,
    )


def _parse_stored(
    entry: Mapping[str, Any],
    arrays: Arrays,
    parts: npt.NDArray[Any] | None,
    spec: TableSpec,
    where: str,
    schema: int,
) -> tuple[StoredSums | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Build what a table stores: its sums, hot items, and reads of the sums; nothing if it is stock."""
    nothing = np.zeros(0, np.int64)
    if entry["verdict"] != "use":
        if arrays or parts is not None or entry["code"] is not None:
            raise GraceError(f"{where}: is left stock and has arrays or code; make the plan again")
        return None, nothing, nothing
    beside = {"sum_reads": nothing} if schema == 1 else {}
    beside |= {name: arrays[name] for name in BESIDE_SUMS if name in arrays}
    for name in BESIDE_SUMS:
        if name not in beside or beside[name].ndim != 1 or beside[name].dtype != np.int64:
            raise GraceError(f"{where}: array {name} is no int64 vector; make the plan again")
    of_sums = {name: array for name, array in arrays.items() if name not in BESIDE_SUMS}
    kind = part(entry, "code", str, where)
    sums = _checked(lambda: from_arrays(kind, spec.num_rows, of_sums, parts), where)
    return sums, beside["hot_items"], beside["sum_reads"]


def _parse_curve(points: list[Any], where: str) -> tuple[CurvePoint, ...]:
    """Build the cuts by budget."""
    if not all(isinstance(point, dict) for point in points):
        raise GraceError(f"{where}: a point of the curve is no JSON object; make the plan again")
    return tuple(_build(CurvePoint, point, where) for point in points)


def _parse_placement(
    document: Mapping[str, Any], hot_items: npt.NDArray[np.int64], where: str
) -> Placement:
    """Build the placement; its hot items are an array."""
    if part(document, "num_hot_items", int, where) != hot_items.size:
        raise GraceError(f"{where}: num_hot_items does not match the array; make the plan again")
    for name in ("num_hbm_sums", "num_rows", "num_sums", "row_bytes"):
        part(document, name, int, where)
    tiers = {}
    for name in ("hbm", "host"):
        use = part(document, name, dict, where)
        for count in ("rows", "bytes", "reads"):
            part(use, count, int, where)
        tiers[name] = _build(TierUse, use, where)
    kept = {key: value for key, value in document.items() if key != "num_hot_items"}
    return _build(Placement, {**kept, "hot_items": hot_items}, where, **tiers)


def _build(kind: Callable[..., V], document: Mapping[str, Any], where: str, **parsed: Any) -> V:
    """Call a dataclass with exactly its fields; ``parsed`` replaces entries of the document."""
    only(document, {field.name for field in fields(kind)}, where)  # type: ignore[arg-type]
    return _checked(lambda: kind(**{**document, **parsed}), where)


def _checked(build: Callable[[], V], where: str) -> V:
    """Turn what a value says about itself into one error that names the place."""
    try:
        return build()
    except (ValueError, TypeError, OverflowError) as error:
        raise GraceError(f"{where}: {quoted(str(error))}; make the plan again") from error
