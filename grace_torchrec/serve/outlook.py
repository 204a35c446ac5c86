"""Outlook: when a new request could start, told from what the workers are doing.

Flow: batches begun and done -> WorkloadMonitor (a worker is a stream, a batch an operator) ->
*Outlook* -> requests whose deadline cannot be met are refused at the door.
Source: RecOS, IJCAI'25, section 3.3 (expected completion of a stream).  Derived: the time of a batch
is a line over its rows, fitted to the last batches, which count less the older they are.  A batch
that failed tells nothing about one that is computed: most fail before they begin.
"""

import threading
import time

from grace_torchrec.schedule.monitor import WorkloadMonitor

MEMORY = 0.95  # weight of the past at each batch: about the last twenty count


class Outlook:
    """Expected times of batches and of workers; may be used from any thread.

    Args:
        num_workers: Workers.

    Attributes:
        busy: Batches under way.
    """

    def __init__(self, num_workers: int) -> None:
        self.monitor = WorkloadMonitor(num_workers)
        self.busy = 0
        self._lock = threading.Lock()
        self._weight = self._rows = self._us = self._rows_rows = self._rows_us = 0.0

    def begin(self, worker: int, rows: int) -> float:
        """Note that a worker begins a batch; return the time."""
        now_s = time.perf_counter()
        with self._lock:
            self.busy += 1
            self.monitor.launch(worker, self._batch_us(rows), 1, (), now_s * 1e6)
        return now_s

    def end(self, worker: int, rows: int, began_s: float, *, computed: bool = True) -> None:
        """Note that its batch is done; learn its time, unless it failed."""
        now_s = time.perf_counter()
        with self._lock:
            self.busy -= 1
            if not computed:
                self.monitor.withdraw(worker, now_s * 1e6)
                return
            self.monitor.complete(worker, now_s * 1e6)
            us = (now_s - began_s) * 1e6
            self._weight = self._weight * MEMORY + 1
            self._rows = self._rows * MEMORY + rows
            self._us = self._us * MEMORY + us
            self._rows_rows = self._rows_rows * MEMORY + rows * rows
            self._rows_us = self._rows_us * MEMORY + rows * us

    def expected_start_s(self, rows_before: int, max_batch: int) -> float:
        """Return the seconds until a request that comes now is expected to start.

        Args:
            rows_before: Rows that wait before it.
            max_batch: Rows of a batch.
        """
        now_us = time.perf_counter() * 1e6
        with self._lock:
            workers = len(self.monitor.queued)
            left = [self.monitor.expected_completion_us(w, now_us) for w in range(workers)]
            whole, rest = divmod(rows_before, max_batch)
            waiting_us = whole * self._batch_us(max_batch) + (self._batch_us(rest) if rest else 0.0)
        # the rest of a batch that waits may take the request along: it starts with that batch
        ahead_us = waiting_us if rows_before >= max_batch else 0.0
        return (min(left) + ahead_us / workers) * 1e-6

    @property
    def mean_error_us(self) -> float:
        """Mean difference of expected and real ends of batches so far."""
        with self._lock:
            return self.monitor.mean_error_us

    def _batch_us(self, rows: int) -> float:
        """Return the expected time of a batch."""
        if not self._weight:
            return 0.0
        mean_rows, mean_us = self._rows / self._weight, self._us / self._weight
        spread = self._rows_rows / self._weight - mean_rows * mean_rows
        slope = 0.0
        if spread > 1e-9 * (1 + mean_rows * mean_rows):
            slope = max(0.0, (self._rows_us / self._weight - mean_rows * mean_us) / spread)
        return max(0.0, mean_us + slope * (rows - mean_rows))
