"""Ctrl-C and processes: a terminal interrupts all of them at once, and one of them is to tell.

Flow: a command starts processes -> *starting_processes*, and in each of them *end_silently*; a script
runs its main by *run*, the command line asks *exit_code* and ends on SIGTERM by *raising_on_sigterm*.
"""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit codes, as a shell tells of SIGINT and SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a job scheduler sends: raised as Ctrl-C is, so that what is unfinished is removed."""


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
    return exit_code(error) is not None


def exit_code(error: BaseException | None) -> int | None:
    """Return the exit code of an interrupt that an error is about; None where it is about none."""
    while isinstance(error, SystemError):  # one for each function of numba that it went through
        error = error.__cause__ or error.__context__
    if isinstance(error, Terminated):
        return TERMINATED
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def raising_on_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` where SIGTERM comes meanwhile, and end the processes that were started.

    Another one is ignored, so that cleaning up ends. Where SIGTERM is ignored or handled already, and
    outside of the main thread, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: object) -> NoReturn:
    """Pass SIGTERM on, as a terminal does with Ctrl-C, and raise it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in multiprocessing.active_children():
        process.terminate()
    raise Terminated


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
