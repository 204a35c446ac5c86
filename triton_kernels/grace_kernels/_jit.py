"""njit with a disk cache that knows all kernel sources.

numba renews a cached function when *its own* file changes. Here functions of one file are
compiled into those of another, so an upgrade or an edit could run yesterday's machine code.
The stamp of every cached function is therefore a hash over all sources of this package.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def _sources_stamp() -> str:
    """Return a hash over names and contents of all sources beside this file."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


STAMP = _sources_stamp()


def jit(function: Any = None, *, parallel: bool = False) -> Any:
    """Compile without the GIL, cached on disk under the stamp of all kernel sources.

    Args:
        function: The function, when used as a bare decorator.
        parallel: Let ``prange`` use several threads.
    """
    if function is None:
        return lambda given: _compile(given, parallel)
    return _compile(function, parallel)


def _compile(function: Callable[..., Any], parallel: bool) -> Any:
    """Compile one function; a numba without the stamp is used without a cache."""
    compiled = njit(nogil=True, cache=True, parallel=parallel)(function)
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is None or not hasattr(index, "_source_stamp"):
        return njit(nogil=True, parallel=parallel)(function)
    index._source_stamp = STAMP
    return compiled
