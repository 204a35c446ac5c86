"""Ctrl-C reaches every process of a terminal: those that were started stay silent."""

import signal
import subprocess
import sys
import threading

from grace_torchrec.interrupts import starting_processes

ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
CHILD = """
import os, signal
from grace_torchrec.interrupts import end_silently
end_silently()
os.kill(os.getpid(), signal.SIGINT)
"""


def ignores() -> bool:
    """Tell whether a process that is started now ignores Ctrl-C."""
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    return asked.stdout == "True\n"


def test_a_process_takes_no_notice_while_it_loads_and_its_parent_does() -> None:
    before = signal.getsignal(signal.SIGINT)
    with starting_processes():
        assert ignores()
    assert signal.getsignal(signal.SIGINT) is before
    assert not ignores()


def test_it_then_ends_without_a_word() -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_other_threads_change_nothing() -> None:
    seen = []

    def start() -> None:
        with starting_processes():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert seen == [before]
