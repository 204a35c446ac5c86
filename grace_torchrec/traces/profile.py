"""Profile: for each table, the sampled bags that decide what is worth storing.

Flow: traces or live batches -> *Profile* -> plans.  A profile is a folder on disk
(``profile.json`` + ``arrays.safetensors``), written whole or not at all.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace_torchrec import artifact
from grace_torchrec.arguments import expect
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.trace import Trace

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class TableProfile:
    """What was recorded for one table.

    Attributes:
        trace: Whole sampled bags of every feature that reads the table.
        features: Names of those features.
        counts_N: int64 ``[N]``, how often each item was requested.
    """

    trace: Trace
    features: tuple[str, ...]

    @property
    def counts_N(self) -> npt.NDArray[np.int64]:
        """How often each item was requested, int64 ``[N]``."""
        return self.trace.counts()

    def fingerprint(self) -> str:
        """Short hash of bags, what belongs to them, and features: equal for equal profiles."""
        trace = self.trace
        return artifact.fingerprint(
            trace.offsets_B1,
            trace.ids_L,
            trace.num_items,
            trace.weights_L,
            trace.time_B,
            trace.split_L,
            *self.features,
        )


@dataclass(frozen=True, eq=False)
class Profile:
    """Table name -> :class:`TableProfile`."""

    tables: Mapping[str, TableProfile]

    def __repr__(self) -> str:
        """Name every table and how much of it was recorded."""
        parts = [
            f"{name}: {table.trace.num_bags:,} bags, {table.trace.num_ids:,} ids of "
            f"{table.trace.num_items:,} items"
            for name, table in self.tables.items()
        ]
        return f"Profile({'; '.join(parts)})"

    @classmethod
    def from_trace(
        cls, table: str, trace: Trace, features: tuple[str, ...] | None = None
    ) -> "Profile":
        """Profile of one table read by ``features`` (default: one feature named as the table).

        Raises:
            GraceError: ``trace`` is no trace, or ``features`` is text and no names.
        """
        expect("Profile.from_trace", "trace", trace, Trace)
        if isinstance(features, str):
            raise GraceError(f"Profile.from_trace: features is text; give ({features!r},)")
        return cls({table: TableProfile(trace, features or (table,))})

    @classmethod
    def merged(cls, profiles: Iterable["Profile"]) -> "Profile":
        """Return the profile of all bags of ``profiles``, in their order.

        Profiles of the shards of a trace merge into the profile of the whole: saved, it has the
        same bytes.

        Raises:
            GraceError: there are none, or a table is read by other features or has weights,
                times or marks in some of them only.
        """
        parts: dict[str, list[TableProfile]] = {}
        for profile in profiles:
            for name, table in profile.tables.items():
                parts.setdefault(name, []).append(table)
        if not parts:
            raise GraceError("merge: there are no profiles with tables; give at least one")
        merged = {}
        for name, tables in parts.items():
            if len({table.features for table in tables}) > 1:
                features = sorted({", ".join(table.features) for table in tables})
                raise GraceError(
                    f"merge: table {name} is read by {' and by '.join(features)}; "
                    f"profile all shards with the same features"
                )
            try:
                trace = concatenate(table.trace for table in tables)
            except GraceError as error:
                raise GraceError(f"merge: table {name}: {error}") from error
            merged[name] = TableProfile(trace, tables[0].features)
        return cls(merged)

    def fingerprint(self) -> str:
        """Short hash over all tables."""
        return artifact.fingerprint(
            *(
                part
                for name in sorted(self.tables)
                for part in (name, self.tables[name].fingerprint())
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile folder whole or not at all; folders that are missing above it are made.

        Raises:
            GraceError: ``path`` is something else than a profile folder, or cannot be written.
        """
        artifact.write_folder(path, "profile", *self.as_folder())

    def as_folder(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the document and the arrays that stand on disk for this profile.

        Arrays of a table are called ``<number>.<name>``; readers pass over names they do not know.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        tables: dict[str, Any] = {}
        for index, (name, table) in enumerate(self.tables.items()):
            trace = table.trace
            optional = {"weights": trace.weights_L, "time": trace.time_B, "split": trace.split_L}
            arrays |= {f"{index}.offsets": trace.offsets_B1, f"{index}.ids": trace.ids_L}
            arrays |= {
                f"{index}.{key}": array for key, array in optional.items() if array is not None
            }
            tables[name] = {
                "arrays": index,
                "features": list(table.features),
                "num_items": trace.num_items,
                "fingerprint": table.fingerprint(),
                **({"note": trace.note} if trace.note else {}),
            }
        return {"schema": SCHEMA, "tables": tables}, arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        """Read a profile folder; every array is validated as a fresh trace is.

        Raises:
            GraceError: the folder is damaged, or of a schema this version does not know.
        """
        return cls.from_folder(*artifact.read_folder(path, "profile"), path)

    @classmethod
    def from_folder(
        cls,
        document: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        path: str | os.PathLike[str],
    ) -> "Profile":
        """Return the profile that a folder holds which was read already.

        Args:
            document: Of :meth:`as_folder`, as the next.
            arrays: By name.
            path: The folder, for messages.

        Raises:
            GraceError: as :meth:`load`.
        """
        if document.get("schema") != SCHEMA:
            raise GraceError(
                f"{path}: profile schema {document.get('schema')!r}, this version reads {SCHEMA}; profile again"
            )
        tables = {}
        for name, entry in _entries(document, path).items():
            tables[name] = _table(arrays, entry, f"{path}: table {name}")
        return cls(tables)


class _Entry(NamedTuple):
    """What ``profile.json`` says of one table."""

    arrays: int
    features: tuple[str, ...]
    num_items: int
    fingerprint: Any
    note: str


def _entries(document: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, _Entry]:
    """Return the entries of the document by table name."""
    try:
        return {
            str(name): _Entry(
                int(e["arrays"]),
                tuple(map(str, e["features"])),
                int(e["num_items"]),
                e["fingerprint"],
                str(e.get("note", "")),
            )
            for name, e in document["tables"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GraceError(
            f"{path}: profile.json lacks or mistypes {error}; write the profile again"
        ) from error


def _table(arrays: Mapping[str, npt.NDArray[Any]], entry: _Entry, where: str) -> TableProfile:
    """Return the table of an entry; its arrays are those whose names begin with its number."""
    part = {
        key.split(".", 1)[1]: array
        for key, array in arrays.items()
        if key.split(".", 1)[0] == str(entry.arrays)
    }
    if not {"offsets", "ids"} <= set(part):
        raise GraceError(f"{where}: arrays are missing; write the profile again")
    try:
        trace = Trace(
            part["offsets"],
            part["ids"],
            entry.num_items,
            weights_L=part.get("weights"),
            time_B=part.get("time"),
            split_L=part.get("split"),
            note=entry.note,
        )
    except GraceError as error:
        raise GraceError(f"{where}: {error}; write the profile again") from error
    table = TableProfile(trace, entry.features)
    if table.fingerprint() != entry.fingerprint:
        raise GraceError(f"{where}: arrays do not match their fingerprint; write the profile again")
    return table
