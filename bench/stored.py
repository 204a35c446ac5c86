"""Stored: what a method of ours or of others stores, and how it rewrites bags.

Flow: a method's fit -> *Stored* -> cases count its reads, weigh its bytes, write it out for an
independent referee.  Shapes: R stored rows, R1 = R + 1, S items of all sets, N items.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.rewrite import RewrittenBags, rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

DUMP_FILES = ("stored_rows.npz", "test_bags.npz")


@dataclass(frozen=True, eq=False)
class Stored:
    """The outcome of fitting any method.

    Attributes:
        set_indptr_R1: int64, CSR of stored row -> items; sums of two or more items only.
        set_items_S: int64 item ids.
        metadata_bytes: Bytes of the arrays that turn ids into stored rows.
        rewrite: Rewrites the bags of a trace; stored row ``j`` is written as ``N + j``.
    """

    set_indptr_R1: npt.NDArray[np.int64]
    set_items_S: npt.NDArray[np.int64]
    metadata_bytes: int
    rewrite: Callable[[Trace], RewrittenBags]

    @property
    def num_sums(self) -> int:
        """Stored rows R."""
        return int(self.set_indptr_R1.size - 1)

    @classmethod
    def of(cls, sums: StoredSums) -> "Stored":
        """Wrap what one of our grouping methods returned."""
        return cls(
            sums.set_indptr_R1,
            sums.set_items_S,
            sums.metadata_bytes,
            lambda trace: rewrite(trace, sums),
        )

    @classmethod
    def nothing(cls) -> "Stored":
        """No sums: bags are read as they are."""
        return cls(
            np.zeros(1, np.int64),
            np.zeros(0, np.int64),
            0,
            lambda trace: RewrittenBags(
                trace.offsets_B1, trace.ids_L.astype(np.int64), trace.weights_L
            ),
        )


def make_dump_folder(folder: Path) -> None:
    """Make the folder of a dump, before anything is measured.

    Raises:
        GraceError: ``folder`` cannot be made, or holds other .npz files, which a referee would
            take for more bags.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraceError(
            f"{folder}: cannot be made ({error.strerror}); give another place"
        ) from error
    others = sorted(file.name for file in folder.glob("*.npz") if file.name not in DUMP_FILES)
    if others:
        raise GraceError(
            f"{folder}: holds {others[0]}, which is no part of a dump; give an empty folder"
        )


def dump(folder: Path, stored: Stored, bags: RewrittenBags) -> None:
    """Write what is stored and the rewritten test bags, for a referee that trusts no counter."""
    np.savez(folder / DUMP_FILES[0], indptr=stored.set_indptr_R1, indices=stored.set_items_S)
    np.savez(folder / DUMP_FILES[1], offsets=bags.offsets_B1, rows=bags.rows)
