"""njit with a disk cache that knows all sources of its folder, and that processes may share.

numba renews a cached function when *its own* file changes. Here functions of one file are
compiled into those of another, so an upgrade or an edit could run yesterday's machine code.
The stamp of every cached function is therefore a hash over all sources of its folder.

numba numbers the files that hold machine code, and writes the index that names them first. Two
processes that compile a function for different arguments at a time take the same number, and then
one loads what the other compiled: a crash. A process that is killed in between leaves an index
that names old code. Here a file is named after all that its code depends on, and written first.
"""

import contextlib
import functools
import glob
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import cfunc, njit
from numba.core import sigutils
from numba.core.caching import IndexDataCacheFile
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
    given = sigutils.normalize_signature(signature)
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


class CodeFiles(IndexDataCacheFile):
    """The disk cache of one function: an index, and a file for every signature.

    An index that lost an entry to another process costs compiling once more, no more than that.

    Args:
        cache_path: Folder.
        filename_base: Start of all names.
        source_stamp: Hash of the sources.
    """

    def __init__(self, cache_path: str, filename_base: str, source_stamp: str) -> None:
        super().__init__(cache_path, filename_base, source_stamp)
        self._base = filename_base
        self._tag = source_stamp[:16]

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled: the code, then the index that names it."""
        name = self._name_of(key)
        self._save_data(name, data)
        overloads = self._load_index()
        if not overloads:
            self._remove_old()
        overloads[key] = name
        self._save_index(overloads)

    def _name_of(self, key: Any) -> str:
        """Return a name that no other code has: of other sources, signatures, CPUs or numbas."""
        told = repr((self._source_stamp, numba.__version__, key))
        return f"{self._base}.{self._tag}.{hashlib.sha256(told.encode()).hexdigest()[:24]}.nbc"

    def _remove_old(self) -> None:
        """Remove code of other sources: no index names it any more."""
        for path in Path(self._cache_path).glob(f"{glob.escape(self._base)}.*.nbc"):
            if f".{self._tag}." not in path.name:
                with contextlib.suppress(OSError):  # another process was faster
                    path.unlink()


def _stamped(compiled: Any, function: Callable[..., Any]) -> bool:
    """Give a function a cache of ours; tell whether this numba takes one."""
    cache = getattr(compiled, "_cache", None)
    theirs = getattr(cache, "_cache_file", None)
    if type(theirs) is not IndexDataCacheFile or not str(theirs._index_name).endswith(".nbi"):
        return False
    base = str(theirs._index_name).removesuffix(".nbi")
    stamp = _stamp(Path(function.__code__.co_filename).parent)
    cache._cache_file = CodeFiles(theirs._cache_path, base, stamp)  # type: ignore[union-attr]
    return True
