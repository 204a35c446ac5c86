"""Slots: what readers see stays whole while a writer changes it.

Flow: Served asks *Slots* for its content before a batch and gives it back after it; a delta writes
the other slot, and the slots change places between batches.
With two slots no reader ever waits: a writer waits, for at most the batches under way.  The second
is made at the first write.  With one slot (half the memory) a reader that comes while rows are
written waits for the batches under way and for the writing.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from grace_torchrec.errors import GraceError

T = TypeVar("T")


class Slots(Generic[T]):
    """One or two equal contents, of which readers see one, and a version.

    Args:
        content: The first content.
        copy: Makes an equal one that shares nothing that is written; without, there is one slot.
        version: Version of the content as it is.
    """

    def __init__(self, content: T, copy: Callable[[T], T] | None = None, version: int = 0) -> None:
        self._contents = [content]
        self._copy = copy
        self._readers = [0, 0]
        self._active = 0
        self._closed = False  # one slot only: a write is waiting or under way
        self._torn: str | None = None
        self._version = version
        self._changed = threading.Condition()
        self._one_writer = threading.Lock()

    @property
    def version(self) -> int:
        """Writes that readers see, counted from the version given."""
        return self._version

    @property
    def contents(self) -> list[T]:
        """The contents there are, the one that readers see first."""
        active = self._active  # looked at once: a writer may be about to change it
        return self._contents[active:] + self._contents[:active]

    def reading(self) -> "_Reading[T]":
        """Give a content and its version in a ``with`` block; neither changes inside it.

        Raises:
            GraceError: when the block is entered: a write failed half-way into the only content.
        """
        return _Reading(self)

    def publish(self, write: Callable[[T], None]) -> int:
        """Apply ``write`` to every content; readers see the old or the new one, never a mixture.

        Args:
            write: Changes one content; called for each, one after the other.  What can fail is to
                be done before: a write that fails half-way ends all writing.

        Returns:
            The new version.

        Raises:
            GraceError: an earlier write failed half-way.
        """
        with self._one_writer:
            if self._torn is not None:
                raise GraceError(self._torn)
            if self._copy is None:
                return self._write_alone(write)
            if len(self._contents) == 1:
                self._contents.append(self._copy(self._contents[0]))
            old = self._active
            self._wait_until_unread(1 - old)
            self._write(write, 1 - old)
            with self._changed:
                self._active = 1 - old
                self._version += 1
            self._wait_until_unread(old)
            self._write(write, old)
            return self._version

    def _write_alone(self, write: Callable[[T], None]) -> int:
        """Let no new reader in, wait for those inside, write."""
        with self._changed:
            self._closed = True
        try:
            self._wait_until_unread(0)
            self._write(write, 0)
            self._version += 1
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
        return self._version

    def _write(self, write: Callable[[T], None], slot: int) -> None:
        """Write one content; remember if it was left half-written."""
        try:
            write(self._contents[slot])
        except BaseException as error:
            self._torn = f"a write failed half-way ({error}); convert or load the model again"
            raise

    def _wait_until_unread(self, slot: int) -> None:
        """Wait for the batches that read a content."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readers[slot])


class _Reading(Generic[T]):
    """One reader; a class of its own, for every request passes here and a generator takes longer."""

    def __init__(self, slots: Slots[T]) -> None:
        self._slots = slots
        self._slot = -1

    def __enter__(self) -> tuple[T, int]:
        """Count the reader."""
        slots = self._slots
        with slots._changed:
            if slots._closed:
                slots._changed.wait_for(lambda: not slots._closed)
            if slots._torn is not None and slots._copy is None:
                raise GraceError(slots._torn)
            slot = self._slot = slots._active
            slots._readers[slot] += 1
            return slots._contents[slot], slots._version

    def __exit__(self, *error: object) -> None:
        """The reader is done."""
        slots, slot = self._slots, self._slot
        with slots._changed:
            slots._readers[slot] -= 1
            if not slots._readers[slot]:
                slots._changed.notify_all()
