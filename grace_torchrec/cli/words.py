"""The words of the command line: errors say what to do in options where their own words are Python's.

Flow: message of an error -> *in_own_words* -> standard error, or text of a command.
"""

import site
import sysconfig
import traceback
from pathlib import Path

import grace_kernels
import grace_sharding
import grace_torchrec

PACKAGES = tuple(
    Path(place).resolve()
    for package in (grace_torchrec, grace_kernels, grace_sharding)
    for place in package.__path__
)
LIBRARIES = [  # Debian has more of them than sysconfig tells
    Path(place).resolve()
    for place in (
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
]


def in_own_words(message: str) -> str:
    """Return a message with what to do in the words of the command line.

    >>> in_own_words("table 't' holds id 9; fix the ids, or plan with PlanOptions(bad_ids='drop' or 'zero_row')")
    "table 't' holds id 9; fix the ids, or plan with --bad-ids drop or --bad-ids zero_row"
    """
    # Imported here: errors are rare, and these bring numpy with them.
    from grace_kernels.errors import ALLOW_BAD_IDS
    from grace_sharding.memory_tiers import NO_HBM_BYTES
    from grace_torchrec.traces.readers.line_errors import (
        LEAVE_COLUMNS,
        NAME_COLUMNS,
        NAME_FORMAT,
        NAME_ITEMS,
        READ_AS_LOG,
        SKIP_LINES,
    )

    words = {
        ALLOW_BAD_IDS: "plan with --bad-ids drop or --bad-ids zero_row",
        NO_HBM_BYTES: "leave --hbm-bytes out",
        NAME_COLUMNS: "name the columns from the left: --columns user,item,time",
        NAME_FORMAT: "name the format: --format",
        READ_AS_LOG: "read it with --format interactions",
        LEAVE_COLUMNS: "or leave --columns out",
        NAME_ITEMS: "items of any name are numbered by --remap FILE",
        SKIP_LINES: "or leave such lines out: profile --skip-bad-lines",
    }
    for python, option in words.items():
        message = message.replace(python, option)
    return message


def unforeseen(error: BaseException, retry: str) -> tuple[str, bool]:
    """Tell an error that no check foresaw, and whether the code of the user raised it.

    Args:
        error: It; the innermost place that is no library's says whose it is.
        retry: The call that shows all of it.

    Returns:
        (one line, whether it is the user's).
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [_is_ours(frame.filename) for frame in frames]
    user = [
        not (own or _is_library(frame.filename)) for own, frame in zip(ours, frames, strict=True)
    ]
    last = max((place for place, is_it in enumerate(ours) if is_it), default=-1)
    is_users = any(user[last + 1 :])
    place = max(
        (n for n, own in enumerate(user if is_users else ours) if own), default=len(frames) - 1
    )
    where = f"{Path(frames[place].filename).name}:{frames[place].lineno}"
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")
    whose = (
        f"raised by code of yours at {where}, mend it there"
        if is_users
        else f"raised at {where} and not foreseen, please report it"
    )
    return f"{what}: {whose} ({retry} shows all of it)", is_users


def _is_ours(file: str) -> bool:
    """Tell whether a file is part of these packages."""
    return any(map(Path(file).resolve().is_relative_to, PACKAGES))


def _is_library(file: str) -> bool:
    """Tell whether a file is a library's, or no file at all."""
    return file.startswith("<") or any(map(Path(file).resolve().is_relative_to, LIBRARIES))
