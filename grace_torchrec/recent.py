"""Recent: what was worked out last, and no more than that.

Flow: whoever remembers an answer for a key that callers choose -> *Recent*, which forgets the oldest.
"""

import threading
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
MOST = 64  # a server sees a few forms of batches; callers that vary theirs must not fill its memory


class Recent(dict[Key, Value]):
    """A dict that keeps the entries that were added last; any thread may add.

    Args:
        most: Entries.

    >>> found = Recent(2)
    >>> for number in range(4):
    ...     found[number] = number * number
    >>> dict(found)
    {2: 4, 3: 9}
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def __setitem__(self, key: Key, value: Value) -> None:
        """Add an entry; the oldest goes if there are too many."""
        with self._lock:
            super().__setitem__(key, value)
            while len(self) > self._most:
                del self[next(iter(self))]
