"""Row cache: the most recently used rows of a table that lies in host memory.

Flow: ids -> cache (changes at every look-up) -> rows.  It stands in, on CPU streams, for the cache
of a table in unified memory (UVM_CACHING): a look-up first takes slots for its rows, then reads
them, and a second query in between may take the same slots.  Nothing but the stream orders two
queries, unless ``locked``.  A table that was written or moved is cached anew.  Shapes: L ids, N rows, C slots, D dimension.
"""

import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule import _lru_core


class CachedRows(nn.Module):
    """A table read through a cache of its most recently used rows.

    Args:
        rows_ND: The table, float32 on the CPU.
        num_slots: Rows that the cache holds; at least the different ids of one look-up.
        name: Of the table; the cache is the resource ``cache:NAME``.
        locked: Hold a lock for each look-up: right on any stream, and slower.

    Attributes:
        mutable_resources: What a look-up changes: the scheduler keeps it on one stream.

    Raises:
        GraceError: the table is not float32 ``[N, D]`` on the CPU, or there is no slot.
    """

    def __init__(self, rows_ND: Tensor, num_slots: int, name: str, locked: bool = False) -> None:
        super().__init__()
        if rows_ND.dim() != 2 or rows_ND.dtype != torch.float32 or rows_ND.device.type != "cpu":
            raise GraceError(
                f"row cache {name!r}: a {rows_ND.dtype} table of shape {tuple(rows_ND.shape)} on "
                f"{rows_ND.device}; give float32 [N, D] on the CPU"
            )
        if num_slots < 1:
            raise GraceError(f"row cache {name!r}: {num_slots} slots; give one or more")
        self.mutable_resources = (f"cache:{name}",)
        self.num_slots, self.lock = num_slots, threading.Lock() if locked else None
        self.table = [rows_ND]  # in a list: the table's own module registers it
        self.clear()

    def clear(self) -> None:
        """Forget what is cached; needed only after writes to the table that PyTorch does not see."""
        rows_ND = self.table[0].detach()
        self.seen = _state(rows_ND)
        self.rows = rows_ND.numpy()
        self.cached = np.zeros((self.num_slots + 1, rows_ND.shape[1]), np.float32)
        self.call_of, self.call = np.zeros(self.num_slots + 1, np.int64), 0
        self.slot_of, self.row_of, self.link = _lru_core.empty_slots(len(rows_ND), self.num_slots)

    def forward(self, ids_L: Tensor) -> Tensor:
        """Return the rows ``[L, D]`` of int64 ids ``[L]``.

        Raises:
            GraceError: an id is outside the table, or the ids need more slots than there are.
        """
        if ids_L.numel() and not 0 <= int(ids_L.min()) <= int(ids_L.max()) < len(self.rows):
            raise GraceError(
                f"{self.mutable_resources[0]}: ids from {int(ids_L.min())} to "
                f"{int(ids_L.max())}, the table has {len(self.rows)} rows"
            )
        if self.lock is None:
            return self._look_up(ids_L)
        with self.lock:
            return self._look_up(ids_L)

    def _look_up(self, ids_L: Tensor) -> Tensor:
        """Take slots, then read them."""
        if _state(self.table[0]) != self.seen:  # rows were written, or lie elsewhere now
            self.clear()
        slots_L = np.empty(ids_L.numel(), np.int64)
        self.call += 1
        fits = _lru_core.populate(
            ids_L.numpy(), self.rows, self.cached, self.slot_of, self.row_of, self.link,
            self.call_of, self.call, slots_L,
        )  # fmt: skip
        if not fits:
            raise GraceError(
                f"{self.mutable_resources[0]}: one look-up of {ids_L.numel()} ids needs more than "
                f"{self.num_slots} slots; give the cache more"
            )
        out_LD = np.empty((ids_L.numel(), self.cached.shape[1]), np.float32)
        _lru_core.read(slots_L, self.cached, out_LD)
        return torch.from_numpy(out_LD)


def lru_found(
    ids_L: npt.NDArray[np.int64], num_rows: int, num_slots: int, warm_L: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which requests the cache would find in a slot, bool ``[L]``; no row is moved here.

    Args:
        ids_L: Rows in the order of their requests.
        num_rows: Rows N of the table.
        num_slots: Rows that the cache holds; 0 finds nothing.
        warm_L: Requests before them.

    >>> lru_found(np.array([0, 1, 0, 2, 1, 0]), 3, 2, np.array([], np.int64)).tolist()
    [False, False, True, False, False, False]
    """
    found_L = np.zeros(ids_L.size, np.bool_)
    if num_slots > 0:
        slots = _lru_core.empty_slots(num_rows, num_slots)
        _lru_core.find(warm_L, *slots, np.zeros(warm_L.size, np.bool_))
        _lru_core.find(ids_L, *slots, found_L)
    return found_L


def _state(table: Tensor) -> tuple[int, int]:
    """Return where a table lies and how often it was written (inference tensors do not count)."""
    return table.data_ptr(), -1 if table.is_inference() else table._version
