"""Row cache: the most recently used rows of a table that lies in host memory.

Flow: ids -> cache (changes at every look-up) -> rows.  It stands in, on CPU streams, for the cache
of a table in unified memory (UVM_CACHING): a look-up first takes slots for its rows, then reads
them, and a second query in between may take the same slots.  Nothing but the stream orders two
queries, unless ``locked``.  Shapes: L ids, N rows, C slots, D dimension.
"""

import threading

import numpy as np
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
        self.rows = rows_ND.detach().numpy()
        self.cached = np.zeros((num_slots, rows_ND.shape[1]), np.float32)
        self.slot_of = np.full(rows_ND.shape[0], -1, np.int64)
        self.row_of = np.full(num_slots, -1, np.int64)
        self.used = np.zeros(num_slots, np.int64)
        self.clock = 0
        self.lock = threading.Lock() if locked else None

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
        slots_L = np.empty(ids_L.numel(), np.int64)
        clock = _lru_core.populate(
            ids_L.numpy(), self.rows, self.cached, self.slot_of, self.row_of, self.used,
            self.clock, slots_L,
        )  # fmt: skip
        if clock < 0:
            raise GraceError(
                f"{self.mutable_resources[0]}: one look-up of {ids_L.numel()} ids needs more than "
                f"{len(self.row_of)} slots; give the cache more"
            )
        self.clock = clock
        out_LD = np.empty((ids_L.numel(), self.cached.shape[1]), np.float32)
        _lru_core.read(slots_L, self.cached, out_LD)
        return torch.from_numpy(out_LD)
