"""Sums as named arrays: what a file holds of StoredSums, and what it must pass to become them again.

Flow: StoredSums -> *arrays* -> plan folder -> *StoredSums*, equal to the last byte.  Clusters and
subsets are built again from their members, and the stored codes must be what they give; sets hang on
items by counts that are not kept, so their code is stored whole and must carry exactly the sets.
How masks of subsets split takes longest to form, so it may be kept beside: then it must be a way to
split them, and is not formed again to see that no other has fewer parts.
Every array is as long as what it claims: no size that is only claimed is allocated.
Shapes: N items, C clusters, C1 = C + 1, M members, R stored rows, R1 = R + 1, S items of all sets.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode

Arrays = Mapping[str, npt.NDArray[Any]]
CODE_KINDS = {"clusters": ClusterCode, "subsets": SubsetCode, "sets": SetCode}
NARROW_OR_WIDE = (np.int32, np.int64)
ARRAY_TYPES: dict[str, dict[str, tuple[type, ...]]] = {
    "clusters": {
        "cluster_offsets": (np.int64,),
        "members": (np.int64,),
        "item_code": NARROW_OR_WIDE,
    },
    "subsets": {
        "cluster_offsets": (np.int64,),
        "members": (np.int64,),
        "entries": (np.int64,),
        "item_code": NARROW_OR_WIDE,
    },
    "sets": {
        "set_indptr": (np.int64,),
        "set_items": (np.int64,),
        "home_indptr": (np.int32,),
        "set_row": (np.int32,),
        "others_indptr": (np.int32,),
        "others": (np.int32,),
    },
}
SET_ARRAYS = ("home_indptr", "set_row", "others_indptr", "others")  # fields of SetCode in order


def code_kind(sums: StoredSums) -> str:
    """Return the kind of code of ``sums``: ``clusters``, ``subsets`` or ``sets``."""
    return next(kind for kind, code in CODE_KINDS.items() if isinstance(sums.code, code))


def to_arrays(sums: StoredSums) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that :func:`from_arrays` needs.

    >>> sums = StoredSums.from_clusters(4, np.array([0, 2]), np.array([3, 1]))
    >>> to_arrays(sums)["members"].tolist()
    [3, 1]
    """
    code = sums.code
    if isinstance(code, ClusterCode):
        offsets, members = code.listed()
        return {"cluster_offsets": offsets, "members": members, "item_code": code.item_code_N}
    if isinstance(code, SubsetCode):
        offsets, members, entries = code.listed()
        return {
            "cluster_offsets": offsets,
            "members": members,
            "entries": entries,
            "item_code": code.item_code_N,
        }
    of_code = zip(SET_ARRAYS, (getattr(code, field.name) for field in fields(code)), strict=True)
    return {"set_indptr": sums.set_indptr_R1, "set_items": sums.set_items_S, **dict(of_code)}


def parts_of(sums: StoredSums) -> npt.NDArray[np.uint8] | None:
    """Return how masks split, which :func:`from_arrays` can do without; None where none do."""
    return sums.code.next_E if isinstance(sums.code, SubsetCode) else None


def from_arrays(
    kind: str, num_items: int, arrays: Arrays, parts_E: npt.NDArray[Any] | None = None
) -> StoredSums:
    """Build the sums again.

    Args:
        kind: Of :func:`code_kind`.
        num_items: Rows N of the table.
        arrays: Of :func:`to_arrays`.
        parts_E: Of :func:`parts_of`; default: formed again.

    Raises:
        GraceError: the kind is unknown, an array is missing or one too many, has another type or
            shape, or they contradict each other or the table.
    """
    if kind not in ARRAY_TYPES:
        raise GraceError(f"stored sums: code {kind!r}, expected one of {tuple(ARRAY_TYPES)}")
    _check_types(kind, num_items, arrays)
    if parts_E is not None and kind != "subsets":
        raise GraceError(f"stored sums: {kind} have no masks that split")
    if kind == "sets":
        return _sets(num_items, arrays)
    offsets, members = arrays["cluster_offsets"], arrays["members"]
    if kind == "clusters":
        sums = StoredSums.from_clusters(num_items, offsets, members)
    else:
        sums = StoredSums.from_subsets(num_items, offsets, members, arrays["entries"], parts_E)
    assert not isinstance(sums.code, SetCode)
    told, built = arrays["item_code"], sums.code.item_code_N
    if told.dtype != built.dtype or not np.array_equal(told, built):
        raise GraceError("stored sums: item_code does not agree with the clusters")
    return sums


def _check_types(kind: str, num_items: int, arrays: Arrays) -> None:
    """Refuse other arrays than those of the kind, other types, and codes of another table."""
    wanted = ARRAY_TYPES[kind]
    if arrays.keys() != wanted.keys():
        raise GraceError(f"stored sums: arrays are {sorted(arrays)}, expected {sorted(wanted)}")
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype not in wanted[name]:
            raise GraceError(
                f"stored sums: array {name} has shape {array.shape} and type {array.dtype}"
            )
    per_item, more = ("home_indptr", 1) if kind == "sets" else ("item_code", 0)
    if arrays[per_item].size != num_items + more:
        raise GraceError(
            f"stored sums: {per_item} has {arrays[per_item].size} entries for {num_items} rows"
        )


def _sets(num_items: int, arrays: Arrays) -> StoredSums:
    """Build sums of a SetCode, whose code must carry the sets."""
    indptr, items = arrays["set_indptr"], arrays["set_items"]
    code = SetCode(*(arrays[name] for name in SET_ARRAYS))
    sums = StoredSums(num_items, indptr, items, code)
    code.check_sets(indptr, items)
    return sums
