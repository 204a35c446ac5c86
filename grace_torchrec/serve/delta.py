"""Deltas: trained rows arrive, and every stored row that holds one of them follows.

Flow: {table: (ids, rows)} -> checked -> packed rows, and sums formed anew from float rows ->
written into one slot, then, after the slots changed places, into the other.
A model that took deltas equals, bit for bit, the model converted anew from the new rows.
Shapes: N rows of a table, K rows of a delta, T sums that hold one of them, D dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from grace_torchrec.arguments import told
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.serve.masters import MasterRows
from grace_torchrec.serve.members import Members
from grace_torchrec.serve.row_types import beyond, largest_value, pack_rows
from grace_torchrec.serve.served import Served, ServedModel
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.sums.build_rows import sum_sets

Delta = Mapping[str, tuple[Any, Any]]
NonFinite = Literal["raise", "write"]


@dataclass(frozen=True, eq=False)
class TableDelta:
    """A checked delta of one table.

    Attributes:
        key: Of the table: ``<module>.<name>``.
        collection: Dotted path of its collection.
        table: Number of the table there.
        ids_K: int64, rising.
        rows_KD: Float rows, of the type that the model had.
    """

    key: str
    collection: str
    table: int
    ids_K: Tensor
    rows_KD: Tensor


@dataclass(frozen=True, eq=False)
class RowWrite:
    """Packed rows for one inner table."""

    collection: str
    inner_table: str
    ids_K: Tensor
    packed_KW: Tensor


def publish_delta(served: Served, delta: Delta, *, non_finite: NonFinite = "raise") -> int:
    """Give new rows to a served model; readers see all of a delta or nothing of it.

    Args:
        served: A converted model, target ``module``.
        delta: Table name, or ``<module>.<name>``, -> (ids, rows): distinct integers ``[K]`` and
            float rows ``[K, D]``, tensors or arrays.  :func:`~grace_torchrec.serve.tracked.tracked_rows`
            makes it from a ModelDeltaTracker.
        non_finite: Refuse rows that hold NaN or infinity (``raise``), or ``write`` them.

    Returns:
        The version that readers see from now on; without any row, the one that they see already.

    Raises:
        GraceError: an unknown table, ids outside it or twice, shapes that do not fit, numbers that
            are not finite (or beyond float16, in rows or in their sums, where those are fp16, int8
            or int4); nothing was changed.
        NotSupported: the model takes no deltas.
    """
    if not isinstance(served, Served):
        raise GraceError(
            f"publish_delta: got {told(served)}; give what convert returned (a swapped "
            "model takes new rows by rebuild_sums_)"
        )
    if served.masters is None:
        raise NotSupported(
            "publish_delta: this model takes no deltas; convert it with target='module' and "
            "deltas=True"
        )
    if non_finite not in ("raise", "write"):
        raise GraceError(f"publish_delta: non_finite is 'raise' or 'write', got {non_finite!r}")
    collections = served.collections
    tables = check_delta(collections, served.conversion.row_types, delta, non_finite)
    if not tables:
        return served.version
    masters, members = served.masters.tables, served.members
    with served.one_delta:  # sums are formed from the masters as the last delta left them
        writes = []
        for table in tables:
            writes += _writes(collections, masters, members, table, non_finite)
        version = served.slots.publish(lambda slot: _write(slot, writes))
        for table in tables:  # after the slots: a delta that failed is in no later sum
            _keep(masters[table.key], table)
        return version


def check_delta(
    collections: Mapping[str, TableBatchCollection],
    row_types: Mapping[str, str],
    delta: Delta,
    non_finite: NonFinite,
) -> list[TableDelta]:
    """Check a whole delta before anything is changed; arguments and errors as of publish_delta."""
    places = {
        plan.spec.key: (path, number)
        for path, collection in collections.items()
        for number, plan in enumerate(collection.table_plans)
    }
    specs = [collections[path].table_plans[number].spec for path, number in places.values()]
    return [
        TableDelta(key, *places[key], ids, rows)
        for key, (ids, rows) in check_rows(specs, row_types, delta, non_finite).items()
        if ids.numel()
    ]


def check_rows(
    specs: Sequence[TableSpec],
    row_types: Mapping[str, str],
    delta: Delta,
    non_finite: NonFinite = "raise",
) -> dict[str, tuple[Tensor, Tensor]]:
    """Check a whole delta against the tables that it is for; errors as of publish_delta.

    Args:
        specs: Of the tables.
        row_types: How each table's rows are served, by key.
        delta: See :func:`publish_delta`.
        non_finite: See :func:`publish_delta`.

    Returns:
        Key of each table -> its ids, rising, and rows of the type that the model has.
    """
    known = {name: spec for spec in specs for name in (spec.key, spec.name)}
    checked: dict[str, tuple[Tensor, Tensor]] = {}
    if not isinstance(delta, Mapping):
        raise GraceError(f"delta: give {{table: (ids, rows)}}, got {type(delta).__name__}")
    for name, given in delta.items():
        if name not in known:
            raise GraceError(
                f"delta: no table {name!r}; the model serves {sorted({s.key for s in specs})}"
            )
        spec = known[name]
        if spec.key in checked:
            raise GraceError(f"delta: table {spec.key!r} is given twice; join its rows")
        checked[spec.key] = _checked_table(spec, row_types[spec.key], given, non_finite)
    return checked


def _checked_table(
    spec: TableSpec, row_type: str, given: Any, non_finite: NonFinite
) -> tuple[Tensor, Tensor]:
    """Return the ids of one table, rising, and their rows."""
    key = spec.key
    ids, rows = _checked_ids(key, given, spec.num_rows), _checked_rows(key, given)
    if tuple(rows.shape) != (ids.numel(), spec.dim):
        raise GraceError(
            f"delta: table {key!r} has rows of shape {tuple(rows.shape)} for {ids.numel()} ids "
            f"of dimension {spec.dim}; give one row for each id"
        )
    rows = rows.half() if spec.dtype == "fp16" else rows.float()
    limit = largest_value(row_type)
    bad = ~(rows.isfinite() & (rows.abs() <= limit)).all(dim=1)
    if non_finite == "raise" and bool(bad.any()):
        worst = int(ids[int(torch.nonzero(bad)[0])])
        most = f" (or beyond {limit:g})" if limit != float("inf") else ""
        raise GraceError(
            f"delta: table {key!r} row {worst} is not finite{most} as "
            f"{row_type}; mend the training, or pass non_finite='write'"
        )
    order = torch.argsort(ids)
    return ids[order], rows[order].contiguous()


def _checked_ids(key: str, given: Any, num_rows: int) -> Tensor:
    """Return the ids as int64 on the CPU."""
    if not isinstance(given, Sequence) or len(given) != 2:
        raise GraceError(f"delta: table {key!r} needs (ids, rows), got {type(given).__name__}")
    ids = _as_tensor(given[0])
    if ids is not None and ids.dim() == 1 and not ids.numel():
        return torch.zeros(0, dtype=torch.int64)  # an empty list has no type
    whole = ids is not None and not (ids.is_floating_point() or ids.is_complex())
    if ids is None or not whole or ids.dtype == torch.bool or ids.dim() != 1:
        raise GraceError(f"delta: table {key!r} needs a vector of whole numbers as ids")
    ids = ids.long()
    outside = (ids < 0) | (ids >= num_rows)
    if bool(outside.any()):
        raise GraceError(
            f"delta: table {key!r} has no row {int(ids[outside][0])}; it has {num_rows} rows"
        )
    values, counts = torch.unique(ids, return_counts=True)
    if values.numel() != ids.numel():
        raise GraceError(
            f"delta: table {key!r} is given row {int(values[counts > 1][0])} twice; give it once"
        )
    return ids


def _checked_rows(key: str, given: Any) -> Tensor:
    """Return the rows on the CPU."""
    rows = _as_tensor(given[1])
    if rows is None or not rows.is_floating_point() or rows.dim() != 2:
        raise GraceError(f"delta: table {key!r} needs float rows [K, D]")
    return rows


def _as_tensor(values: Any) -> Tensor | None:
    """Return a tensor on the CPU that nothing else writes to; None for what is no array."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", copy=True)
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        return None


def _writes(
    collections: Mapping[str, TableBatchCollection],
    masters: Mapping[str, MasterRows],
    members: dict[tuple[str, str], Members],
    delta: TableDelta,
    non_finite: NonFinite,
) -> list[RowWrite]:
    """Return every packed row that a table's delta changes.

    Raises:
        GraceError: a sum is too large for its type under ``raise``.
    """
    collection = collections[delta.collection]
    types = collection.type_of
    name = collection.table_plans[delta.table].spec.name
    packed = pack_rows(delta.rows_KD, types[name])
    writes = [RowWrite(delta.collection, name, delta.ids_K, packed)]
    for inner_table, (table, indptr, items) in collection.sets.items():
        if table != delta.table:
            continue
        place = (delta.collection, inner_table)
        if place not in members:
            members[place] = Members.of(indptr, items)
        sums_T, set_indptr_T1, set_items = members[place].touched(delta.ids_K)
        if not sums_T.numel():
            continue
        needed, places = torch.unique(set_items, return_inverse=True)
        rows = _float_rows(masters[delta.key], delta, needed)
        sums, kind = sum_sets(rows, set_indptr_T1, places), types[inner_table]
        if non_finite == "raise":
            _check_sums(delta.key, rows, sums, kind)
        writes.append(RowWrite(delta.collection, inner_table, sums_T, pack_rows(sums, kind)))
    return writes


def _check_sums(key: str, rows_KD: Tensor, sums_TD: Tensor, kind: str) -> None:
    """Refuse sums that rows of their type do not hold; old rows that are not finite may stay."""
    limit = largest_value(kind)
    overflow = bool(rows_KD.isfinite().all()) and not bool(sums_TD.isfinite().all())
    if overflow or bool(beyond(sums_TD, kind).any()):
        raise GraceError(
            f"delta: a stored sum of table {key!r} is not finite (or beyond {limit:g}) as {kind}; "
            "mend the training, or pass non_finite='write'"
        )


def _float_rows(master: MasterRows, delta: TableDelta, items_K: Tensor) -> Tensor:
    """Return the float rows of items as they are after the delta."""
    rows = delta.rows_KD.new_zeros(items_K.numel(), delta.rows_KD.shape[1])
    places, grouped = master.places(items_K)
    rows[grouped] = master.rows_GD[places[grouped]]
    at = torch.searchsorted(delta.ids_K, items_K).clamp(max=delta.ids_K.numel() - 1)
    changed = delta.ids_K[at] == items_K
    rows[changed] = delta.rows_KD[at[changed]]
    return rows


def _keep(master: MasterRows, delta: TableDelta) -> None:
    """Remember the new float rows of grouped items."""
    places, grouped = master.places(delta.ids_K)
    master.rows_GD[places[grouped]] = delta.rows_KD[grouped]


def _write(slot: ServedModel, writes: Sequence[RowWrite]) -> None:
    """Write packed rows into one slot."""
    pieces = {path: collection.pieces() for path, collection in slot.collections.items()}
    for write in writes:
        for piece in pieces[write.collection][write.inner_table]:
            piece.update(write.ids_K, write.packed_KW)
