"""Ctrl-C reaches every process of a terminal: those that were started stay silent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grace_torchrec.interrupts import (
    Terminated,
    raising_on_sigterm,
    run,
    starting_processes,
)

ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
CHILD = """
import os, signal
from grace_torchrec.interrupts import end_silently
end_silently()
os.kill(os.getpid(), signal.SIGINT)
"""


SCRIPT = """
import os, pathlib, signal, sys, tempfile, time
from grace_torchrec.interrupts import run

def compiled():  # each function of numba on the way hands it on so
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise SystemError("returned a result with an exception set") from stop
    except SystemError as inner:
        raise SystemError("returned a result with an exception set") from inner

def main():
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        compiled() if sys.argv[1:] else os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

run(main)
"""


@pytest.mark.parametrize("how", [[], ["compiled"]])
def test_a_script_closes_what_it_holds_and_ends_without_a_traceback(how: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *how], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, "")
    assert not Path(ended.stdout.strip()).exists()


def test_an_error_of_a_script_is_raised_as_it_is() -> None:
    with pytest.raises(SystemError, match="another"):
        run(lambda: (_ for _ in ()).throw(SystemError("another")))


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


@pytest.fixture
def nobody_handles_sigterm() -> Iterator[None]:
    """As in a process that has just begun: schedulers of TorchX leave a handler of theirs behind."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("nobody_handles_sigterm")
def test_sigterm_is_raised_and_ends_what_was_started() -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    with raising_on_sigterm(), pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    child.join(20)
    assert child.exitcode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with raising_on_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
