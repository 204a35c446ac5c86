"""Ctrl-C and processes: a terminal interrupts all of them at once, and one of them is to tell.

Flow: a command starts processes -> *starting_processes*, and in each of them *end_silently*; a script
runs its main by *run*, the command line asks *was_interrupted*.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # the exit code, as a shell tells of SIGINT


def run(main: Callable[[], object]) -> None:
    """Call the main function of a script; Ctrl-C ends it without a traceback, exit code 130.

    What it holds open is closed first, as its temporary folders.
    """
    try:
        main()
    except (KeyboardInterrupt, SystemError) as error:
        if not was_interrupted(error):
            raise
        sys.exit(INTERRUPTED)


def was_interrupted(error: BaseException) -> bool:
    """Tell whether Ctrl-C is what an error is about: compiled code hands it on, by SystemErrors."""
    under: BaseException | None = error
    while isinstance(under, SystemError):  # one for each function of numba that it went through
        under = under.__cause__ or under.__context__
    return isinstance(under, KeyboardInterrupt)


@contextmanager
def starting_processes() -> Iterator[None]:
    """Let processes that are started meanwhile take no notice of Ctrl-C while they load.

    What is ignored stays ignored in a process that is spawned, until it calls
    :func:`end_silently`.  Only the main thread may say so; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def end_silently() -> None:
    """Let Ctrl-C end this process at once, without a traceback: who started it tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
