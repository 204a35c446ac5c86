"""Workers: the threads of an engine, each a stream of batches.

Flow: RequestQueue -> *Workers*: a thread each, that answers one batch after the other
(:mod:`grace_torchrec.serve.answering`) until the queue is closed and empty.
A worker that ends, whatever ended it, gives its requests back and is replaced.
"""

import itertools
import logging
import math
import threading
import time
from queue import SimpleQueue

from grace_torchrec.serve.answering import Answering, Duties, fail
from grace_torchrec.serve.worker_streams import WorkerStream

MOST_TRIES = 3  # of a request whose workers end
logger = logging.getLogger(__name__)


class Workers:
    """The threads that serve a queue until it is closed and empty.

    Args:
        duties: What they work with.
    """

    def __init__(self, duties: Duties) -> None:
        self.duties = duties
        # One thread more where bags are rewritten ahead: it does so while the streams are taken.
        self.streams: SimpleQueue[WorkerStream] = SimpleQueue()
        for number in range(duties.max_inflight):
            self.streams.put(WorkerStream(number, duties.device))
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()
        self._names = itertools.count()

    def start(self, count: int) -> None:
        """Let there be ``count`` threads."""
        with self._lock:
            for place in range(len(self._threads), count):
                self._spawn(place)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until all threads have ended, also those that replaced others; False: in vain."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                alive = [thread for thread in self._threads.values() if thread.is_alive()]
            if not alive:
                return True
            for thread in alive:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                thread.join(None if timeout_s is None else left_s)

    def has(self, thread: threading.Thread) -> bool:
        """Tell whether a thread is one of those that serve."""
        with self._lock:
            return thread in self._threads.values()

    def _spawn(self, place: int) -> None:
        """Start a thread; the lock is held."""
        name = f"grace-engine-{place}-{next(self._names)}"
        thread = threading.Thread(target=self._life, args=(place,), name=name, daemon=True)
        self._threads[place] = thread
        thread.start()

    def _life(self, place: int) -> None:
        """Serve; if anything ends that, give the requests back and start a successor."""
        worker = Answering(self.duties, self.streams)
        try:
            while worker.serve_next():
                pass
        except BaseException as error:  # a thread must not end and take requests along
            logger.exception("engine: a worker ended and is replaced")
            self._replace(place, worker, error)

    def _replace(self, place: int, worker: Answering, error: BaseException) -> None:
        """Give unanswered requests back, then start the successor of a worker."""
        again = []
        for request in worker.requests:
            request.tries += 1
            if request.future.done():
                continue
            if request.tries < MOST_TRIES:
                again.append(request)
            else:
                fail(request, error)
                self.duties.metrics.count(failed=1)
        self.duties.metrics.count(restarts=1)
        if again:
            self.duties.queue.put_back(again)
        with self._lock:
            self._spawn(place)
