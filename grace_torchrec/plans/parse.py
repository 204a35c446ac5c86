"""Parse: JSON values and arrays of a plan folder into checked values, or one error.

Flow: plan.json + arrays -> *MemoryModel, PlanOptions, TablePlan*.  A file is a stranger: keys,
types and shapes are checked here, ranges and agreement by the values themselves.  No size that a
file merely claims is allocated.
Shapes: N items, C1 = clusters + 1, M members, H hot rows.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse
from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import PlanOptions, Prediction, TablePlan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums

Arrays = dict[str, npt.NDArray[Any]]
ARRAY_NAMES = {"cluster_offsets", "members", "item_code", "hot_items"}
TEXTS = ("verdict", "reason", "method", "lookup", "lookup_reason")
TABLE_KEYS = {"spec", "placement", "predicted", "spec_fingerprint", "arrays_fingerprint", *TEXTS}
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
        odd = ", ".join(sorted(document.keys() ^ wanted))
        raise GraceError(f"{where}: {odd} missing or unknown; make the plan again")


def arrays_fingerprint(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Short hash of the arrays of one table, by name."""
    return artifact.fingerprint(*(x for name in sorted(arrays) for x in (name, arrays[name])))


def parse_memory(document: Mapping[str, Any], where: str) -> MemoryModel:
    """Build the memory model.

    Raises:
        GraceError: a key or value is not what a plan holds.
    """
    part(document, "machine", str, where)
    tiers = []
    for tier in part(document, "tiers", list, where):
        if not isinstance(tier, dict):
            raise GraceError(f"{where}: a tier is no JSON object; make the plan again")
        tiers.append(_build(Tier, tier, where))
    return _build(MemoryModel, document, where, tiers=tuple(tiers))


def parse_options(document: Mapping[str, Any], where: str) -> PlanOptions:
    """Build the options.

    Raises:
        GraceError: a key or value is not what a plan holds.
    """
    lists = {name: tuple(part(document, name, list, where)) for name in ("methods", "size_limits")}
    return _build(PlanOptions, document, where, **lists)


def parse_table(entry: Any, arrays: Arrays, where: str) -> TablePlan:
    """Build the plan of one table.

    Args:
        entry: Its JSON object.
        arrays: Its arrays by their own names.
        where: Place for messages.

    Raises:
        GraceError: anything in it is missing, of the wrong type or out of range, or parts
            contradict each other.
    """
    if not isinstance(entry, dict):
        raise GraceError(f"{where}: is no JSON object; make the plan again")
    only(entry, TABLE_KEYS, where)
    described = part(entry, "spec", dict, where)
    features = tuple(part(described, "features", list, where))
    spec = _build(TableSpec, described, where, features=features)
    where = f"{where} ({spec.key})"
    told = entry.get("spec_fingerprint"), entry.get("arrays_fingerprint")
    if told != (spec.fingerprint(), arrays_fingerprint(arrays)):
        raise GraceError(f"{where}: does not match its fingerprints; make the plan again")
    texts: dict[str, Any] = {name: part(entry, name, str, where) for name in TEXTS}
    sums = _parse_sums(arrays, spec, where) if texts["verdict"] == "use" else None
    if sums is None and arrays:
        raise GraceError(f"{where}: is left stock and has arrays; make the plan again")
    return _checked(
        lambda: TablePlan(
            spec=spec,
            sums=sums,
            placement=_parse_placement(part(entry, "placement", dict, where), arrays, where),
            predicted=_build(Prediction, part(entry, "predicted", dict, where), where),
            **texts,
        ),
        where,
    )


def _parse_sums(arrays: Arrays, spec: TableSpec, where: str) -> StoredSums:
    """Build the sums from their clusters; the stored code must be what they give."""
    if set(arrays) != ARRAY_NAMES:
        raise GraceError(
            f"{where}: arrays are {sorted(arrays)}, expected {sorted(ARRAY_NAMES)}; make the plan again"
        )
    for name, array in arrays.items():
        kinds = (np.int32, np.int64) if name == "item_code" else (np.int64,)
        if array.ndim != 1 or array.dtype not in kinds:
            raise GraceError(
                f"{where}: array {name} has shape {array.shape} and type {array.dtype}; make the plan again"
            )
    if arrays["item_code"].size != spec.num_rows:
        raise GraceError(
            f"{where}: item_code has {arrays['item_code'].size} entries for {spec.num_rows} rows; make the plan again"
        )
    offsets, members = arrays["cluster_offsets"], arrays["members"]
    if (
        not offsets.size
        or offsets[0] != 0
        or offsets[-1] != members.size
        or (np.diff(offsets) < 0).any()
    ):
        raise GraceError(f"{where}: cluster_offsets do not cover the members; make the plan again")
    sums = _checked(lambda: StoredSums.from_clusters(spec.num_rows, offsets, members), where)
    if not np.array_equal(sums.clusters.item_code_N, arrays["item_code"]):
        raise GraceError(
            f"{where}: item_code does not agree with the clusters; make the plan again"
        )
    return sums


def _parse_placement(document: Mapping[str, Any], arrays: Arrays, where: str) -> Placement:
    """Build the placement; its hot items are an array."""
    hot_items = arrays.get("hot_items", np.zeros(0, np.int64))
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
        raise GraceError(f"{where}: {error}; make the plan again") from error
