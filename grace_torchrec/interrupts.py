"""Ctrl-C and processes: a terminal interrupts all of them at once, and one of them is to tell.

Flow: a command starts processes -> *starting_processes*, and in each of them *end_silently*.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
