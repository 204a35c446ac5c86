"""Snapshots: something is saved again and again by a thread of its own, of the lowest priority.

Flow: recorder -> *Snapshots* -> a folder that is whole at any time.
"""

import logging
import os
import threading
from collections.abc import Callable

from grace_torchrec import artifact
from grace_torchrec.arguments import expect_seconds
from grace_torchrec.errors import GraceError
from grace_torchrec.priority import lower_priority

logger = logging.getLogger(__name__)


class Snapshots:
    """A thread that saves every so many seconds; an error is kept, and the next turn tries again.

    The first error after a snapshot that was written is warned of in the log.

    Args:
        save: Writes a folder, whole or not at all.
        path: The folder; what a killed writer left beside it is cleared up first.
        interval_s: Seconds between two snapshots, above 0.
        written: Snapshots written before, by another one that is closed.

    Attributes:
        written: Snapshots written.
        error: The last error, empty once a snapshot was written again.

    Raises:
        GraceError: ``interval_s`` is out of range.
    """

    def __init__(
        self,
        save: Callable[[str | os.PathLike[str]], None],
        path: str | os.PathLike[str],
        interval_s: float,
        written: int = 0,
    ) -> None:
        expect_seconds("snapshots", "interval_s", interval_s)
        artifact.recover(path)
        self.written, self.error = written, ""
        self._save, self._path, self._interval_s = save, path, interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grace-snapshots", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the last snapshot was taken."""
        return self._closing.is_set() and not self._thread.is_alive()

    def close(self) -> None:
        """Write a last snapshot and end the thread; a second call does nothing.

        Raises:
            GraceError: the last snapshot failed; the thread has ended.
        """
        if self.is_closed:
            return
        self._closing.set()
        self._thread.join()
        if self.error:
            raise GraceError(
                f"snapshots: the last one was not written ({self.error}); what it would hold is "
                "still there: save() it in another place"
            )

    def _run(self) -> None:
        """Save in turns, and once more at the end."""
        lower_priority()
        while True:
            is_last = self._closing.wait(self._interval_s)
            try:
                self._save(self._path)
                self.written, self.error = self.written + 1, ""
            except Exception as error:
                if not self.error:
                    logger.warning("snapshots: one failed, they are tried again: %s", error)
                self.error = f"{type(error).__name__}: {error}"
            if is_last:
                return
