"""Recorder stats: what a recorder saw, kept and lost.

Flow: recorder -> *Losses* while it runs, *RecorderStats* for people and metrics.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class RecorderStats:
    """What a recorder saw, kept and lost, since it was made.

    Attributes:
        bags_seen: Bags that passed, of all tables, empty ones included.  Where batches passed
            unseen, an estimate: a batch that was looked at counts as many times as it stands for.
        bags_held: Bags in the sample.
        ids_held: Ids in the sample.
        bytes_held: Bytes of the sample, about.
        batches_passed: Batches that passed unseen, so that ``max_overhead`` holds.
        seconds_spent: Time that looks at batches took; not counted where ``max_overhead`` is None.
        batches_dropped: Batches that came while the recorder was in use.
        batches_failed: Batches that could not be read.
        bags_too_long: Bags drawn and not held: they have more than ``max_bag_ids`` ids.
        bags_refused: Bags drawn and not held: ids outside their table, or weights missing or not
            finite.
        last_error: Of a batch, a bag or a snapshot; empty without.
        snapshots: Files written.
    """

    bags_seen: int
    bags_held: int
    ids_held: int
    bytes_held: int
    batches_passed: int
    seconds_spent: float
    batches_dropped: int
    batches_failed: int
    bags_too_long: int
    bags_refused: int
    last_error: str
    snapshots: int


class Losses:
    """Counts of what was not recorded, and the last error; safe from any number of threads.

    Attributes:
        dropped: See ``RecorderStats.batches_dropped``.
        failed: See ``RecorderStats.batches_failed``.
        too_long: See ``RecorderStats.bags_too_long``.
        refused: See ``RecorderStats.bags_refused``.
        last_error: Of a batch or a bag.
    """

    def __init__(self) -> None:
        self.dropped = self.failed = self.too_long = self.refused = 0
        self.last_error = ""
        self._lock = threading.Lock()  # held for an addition only

    def add(self, what: str, error: Exception | None = None) -> None:
        """Count one more.

        Args:
            what: Name of the count.
            error: Behind it.
        """
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)
            if error is not None:
                self.last_error = f"{type(error).__name__}: {error}"
