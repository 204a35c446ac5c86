"""``package.module:function`` on the command line: found from the current folder on, and called.

Flow: text -> *what the function returns*; model_argument and plan_argument say what it is to be.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from grace_torchrec.errors import GraceError

NAME = r"[^\W\d]\w*"
EXAMPLE = "make"  # a function, where none was named
MOST_NAMES = 8  # of functions, in an error


def call_function(what: str, text: str) -> Any:
    """Return what the function that ``package.module:function`` names returns.

    Args:
        what: Name of the argument, for errors.
        text: The argument.

    Raises:
        GraceError: it cannot be imported, is nothing to call, or takes arguments.
    """
    function = _load(what, text)
    try:
        return function()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside of the function: its own business
        raise GraceError(f"{what} {text!r}: takes arguments ({error}); name one that takes none") from error  # fmt: skip


def spelled(text: str) -> str:
    """Return what to write for a function that was named by a path, by dots, or not at all.

    >>> spelled("./mine.py:make")
    'write mine:make'
    >>> spelled("mine")
    'write mine:make, with the name of your function for make'
    """
    place, _, rest = text.partition(":")
    folder, module = _module_of(place)
    named = re.match(NAME, rest)
    function = named.group() if named else EXAMPLE
    if not re.fullmatch(rf"{NAME}(\.{NAME})*", module):
        if module and os.path.isfile(place):
            return f"rename {place}: a module's name has letters, digits and _ alone"
        return f"write package.module:{function}"
    parent, _, last = module.rpartition(".")
    if not rest and parent and not is_module(module):
        module, function, named = parent, last, re.match(NAME, last)
    told = f"write {module}:{function}"
    if named is None:
        told += f", with the name of your function for {function}"
    return told if folder is None else f"change to {folder}, or add it to PYTHONPATH, and {told}"


def _module_of(place: str) -> tuple[str | None, str]:
    """Return the folder to import from, None for the current one, and the module that is meant."""
    if os.sep not in place and not place.endswith(".py"):
        return None, place
    path = os.path.relpath(place.removesuffix(".py"))
    if path.startswith(os.pardir):
        return os.path.dirname(os.path.abspath(path)), os.path.basename(path)
    return None, path.replace(os.sep, ".")


def is_module(name: str) -> bool:
    """Tell whether a module can be found, in the current folder first; nothing is imported."""
    places = [Path(folder, *name.split(".")) for folder in ("", *sys.path)]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def _load(what: str, text: str) -> Callable[[], Any]:
    """Import the function.

    Raises:
        GraceError: it cannot be imported, or is nothing to call.
    """
    if not re.fullmatch(rf"{NAME}(\.{NAME})*:{NAME}", text):
        raise GraceError(f"{what} {text!r}: names no function of a module; {spelled(text)}")
    module_name, _, function_name = text.partition(":")
    module = _import(what, text, module_name)
    if not hasattr(module, function_name):
        has = ", ".join(_functions(module)) or "none"
        where = getattr(module, "__file__", None) or f"folder {module_name.replace('.', os.sep)}"
        raise GraceError(
            f"{what} {text!r}: {where} has no {function_name}; check the name (its functions: {has})"
        )
    function = getattr(module, function_name)
    if not callable(function):
        raise GraceError(f"{what} {text!r}: is no function; name one that takes no arguments")
    found: Callable[[], Any] = function
    return found


def _import(what: str, text: str, name: str) -> ModuleType:
    """Import a module as ``python -m`` would: the current folder comes first.

    Raises:
        GraceError: there is none, or it imports what is not there.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not f"{name}.".startswith(f"{missing}."):
            raise GraceError(f"{what} {text!r}: its code needs {missing}, which is not installed") from error  # fmt: skip
        raise GraceError(
            f"{what} {text!r}: no module {missing} in the current folder {os.getcwd()}, nor installed; "
            "check the name, or run this where it is"
        ) from error
    except ImportError as error:
        raise GraceError(
            f"{what} {text!r}: cannot be imported ({error}); mend its imports, or see what "
            "'grace-torchrec doctor' says of the libraries"
        ) from error
    except SyntaxError as error:
        raise GraceError(
            f"{what} {text!r}: {error.filename}:{error.lineno}: {error.msg}; mend it there"
        ) from error


def _functions(module: ModuleType) -> list[str]:
    """Return the names of the first public functions that a module defines."""
    found = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return found[:MOST_NAMES]
