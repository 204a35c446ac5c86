"""Row cache: a table read through its most recently used rows, as from unified memory (UVM_CACHING).

A look-up takes slots for its rows, then reads them; a second one in between may take the same slots.
Nothing but the stream orders two look-ups, unless the cache is locked.  L ids, N rows, D dimension.
"""

import threading
import time
from collections import OrderedDict
from contextlib import nullcontext

import torch
from torch import Tensor, nn


class CachedRows(nn.Module):
    """The rows of a table, through a cache.

    Args:
        rows_ND: The table.
        num_slots: Rows that the cache holds; at least the different ids of one look-up.
        name: Of the table; the cache is the resource ``cache:NAME``.
        locked: Hold a lock for each look-up.
        pause_s: Time between taking slots and reading them, which the device may take anyway.
    """

    def __init__(
        self, rows_ND: Tensor, num_slots: int, name: str, locked: bool = False, pause_s: float = 0.0
    ) -> None:
        super().__init__()
        self.mutable_resources = (f"cache:{name}",)
        self.rows, self.pause_s = rows_ND, pause_s
        self.cached = torch.zeros(num_slots, rows_ND.shape[1])
        self.slot_of: OrderedDict[int, int] = OrderedDict()  # by last use
        self.lock = threading.Lock() if locked else nullcontext()

    def forward(self, ids_L: Tensor) -> Tensor:
        """Return the rows ``[L, D]``."""
        with self.lock:
            slots = [self._slot(row) for row in ids_L.tolist()]
            time.sleep(self.pause_s)
            return self.cached[slots]

    def _slot(self, row: int) -> int:
        """Return the slot of a row; one that is not there takes a free one, or that of the oldest."""
        slot = self.slot_of.pop(row, None)
        if slot is None:
            slot = len(self.slot_of)
            if slot == len(self.cached):
                _, slot = self.slot_of.popitem(last=False)
            self.cached[slot] = self.rows[row]
        self.slot_of[row] = slot
        return slot
