"""Options: what takes long says what it does, and says it where no result goes."""

import os
import threading

from grace_torchrec.cli.options import progress_to_stderr


def test_the_log_of_a_long_job_says_what_it_does_and_a_short_one_is_quiet(capfd):
    """No terminal is here: neither a spinner nor anything on standard output, where results go."""
    with progress_to_stderr() as progress:
        progress("reading")
    with progress_to_stderr(every_s=0.01) as progress:
        progress("planning t_item")
        told = ""
        while "planning t_item" not in told:  # forever, were nothing told
            threading.Event().wait(0.01)
            out, err = capfd.readouterr()
            told += err
            assert out == ""
    assert told.splitlines()[-1] == "0 s: planning t_item"
    assert "reading" not in told


def test_a_log_that_nobody_reads_ends_no_job(monkeypatch):
    with open(os.devnull) as closed, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", closed)  # not writable
        with progress_to_stderr(every_s=0.001) as progress:
            progress("planning")
            threading.Event().wait(0.05)
    assert "grace-progress" not in [thread.name for thread in threading.enumerate()]
