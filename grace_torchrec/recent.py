"""Recent: what was worked out last, and no more than that.

Flow: whoever remembers an answer for a key that callers choose -> *Recent*, which forgets what was
not asked for the longest.
"""

import threading
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
MOST = 64  # a server sees a few forms of batches; callers that vary theirs must not fill its memory


class Recent(dict[Key, Value]):
    """A dict that keeps the entries that were added, or asked for by ``get``, last; for any thread.

    Args:
        most: Entries.

    >>> found = Recent(2)
    >>> for number in range(4):
    ...     found[number] = number * number
    >>> dict(found)
    {2: 4, 3: 9}
    >>> found.get(2)
    4
    >>> found[4] = 16
    >>> dict(found)
    {2: 4, 4: 16}
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def __setitem__(self, key: Key, value: Value) -> None:
        """Add an entry, or put it last; the first goes if there are too many."""
        with self._lock:
            self.pop(key, None)
            super().__setitem__(key, value)
            while len(self) > self._most:
                del self[next(iter(self))]

    def get(self, key: Key, default: Any = None, /) -> Value | Any:
        """Return an entry, which is the last one then, or the default."""
        with self._lock:
            if key not in self:
                return default
            value = self.pop(key)
            super().__setitem__(key, value)
            return value
