"""Stages of a check: what they come to is an exit code, and nothing unsaid passes for a yes."""

import pytest

from bench.gpu_run import DRY, Run, run_stages


def says(ok):
    def stage(run):
        """A stage with one check."""
        run.say("check", ok=ok)

    return stage


def breaks(run):
    raise ValueError("no such kernel")


@pytest.mark.parametrize(
    ("stages", "code"),
    [
        ([(says(True), 0)], 0),
        ([(says(True), 0), (says(True), 1e9)], 3),
        ([(says(True), 1e9)], 3),
        ([(says(False), 0), (says(True), 1e9)], 1),
        ([(breaks, 0), (says(True), 0)], 1),
    ],
)
def test_a_no_comes_before_what_was_left_out_and_that_before_a_yes(tmp_path, stages, code):
    assert run_stages(Run(DRY, 5.0, tmp_path), stages) == code
