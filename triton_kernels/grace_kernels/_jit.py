"""njit with a disk cache that knows all sources of its folder.

numba renews a cached function when *its own* file changes. Here functions of one file are
compiled into those of another, so an upgrade or an edit could run yesterday's machine code.
The stamp of every cached function is therefore a hash over all sources of its folder.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import cfunc, njit
from numba.core import sigutils
from numba.core.ccallback import CFunc


@functools.cache
def _stamp(folder: Path) -> str:
    """Return a hash over names and contents of all sources in ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def jit(function: Any = None, *, parallel: bool = False, inline: bool = False) -> Any:
    """Compile without the GIL, cached on disk under a stamp of all sources beside it.

    Args:
        function: The function, when used as a bare decorator.
        parallel: Let ``prange`` use several threads.
        inline: Let LLVM copy it into its callers, however large it is: for what runs once an id.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "parallel": parallel,
        "forceinline": inline,
        "no_cfunc_wrapper": True,  # for C callers; compile_for_address makes what they may call
    }
    if function is None:
        return lambda given: _compile(given, options)
    return _compile(function, options)


def compile_for_address(function: Callable[..., Any], signature: Any) -> Any:
    """Compile for callers that hold an address (``.address`` of the result), cached like ``jit``."""
    given = sigutils.normalize_signature(signature)  # type: ignore[no-untyped-call]
    compiled = CFunc(function, given, locals={}, options={"nopython": True})
    try:
        compiled.enable_caching()
    except RuntimeError:  # no folder can hold a cache
        return cfunc(signature)(function)
    if not _stamped(compiled, function):
        return cfunc(signature)(function)
    compiled.compile()
    return compiled


def _compile(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Compile one function; without a writable cache, or a stamp, nothing is cached."""
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can hold a cache: compile in every process
        return njit(**options)(function)
    if not _stamped(compiled, function):
        return njit(**options)(function)
    return compiled


def _stamped(compiled: Any, function: Callable[..., Any]) -> bool:
    """Put the stamp into the cache of a function; tell whether its cache takes one."""
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is None or not hasattr(index, "_source_stamp"):
        return False
    index._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
    return True
