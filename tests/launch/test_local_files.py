"""A job of this machine whose files are missing is refused when it is launched, dry runs too."""

import subprocess
import sys
from pathlib import Path

import pytest
from torchx.specs.finder import ComponentValidationException

import grace_torchrec as grace
from grace_torchrec.launch import components, submit

JOBS = {  # what is missing -> a job that is all right otherwise
    "trace": lambda missing: components.profile(trace=missing, out="p"),
    "profile": lambda missing: components.plan(model="m:f", profile=missing, memory="a40"),
    "memory": lambda missing: components.plan(model="m:f", profile="there", memory=missing),
    "plan": lambda missing: components.convert(model="m:f", plan=missing, out="s"),
    "served": lambda missing: components.serve_bench(served=missing),
    "script": lambda missing: components.train(script=missing),
}
DRY_RUN = "run -s local_cwd --dryrun grace.plan --model m:f --profile nowhere --memory a40"


@pytest.mark.parametrize("what", JOBS)
def test_what_is_missing_here_is_told_before_anything_starts(folder, what):
    job = JOBS[what]("nowhere")
    for start in (submit.dry_run, submit.run):
        with pytest.raises(grace.GraceError, match=f"{what}.*'nowhere'"):
            start(job, "local_cwd")
    assert [path.name for path in folder.iterdir()] == ["installed"]


@pytest.mark.parametrize("what", [name for name in JOBS if name != "memory"])
def test_what_is_there_is_taken_and_so_is_what_a_cluster_may_have(folder, what):
    (folder / "there").write_text("")
    if what in ("profile", "plan", "served"):  # damaged folders are refused elsewhere
        assert "nowhere" in submit.dry_run(JOBS[what]("nowhere"), "slurm", {"partition": "gpu"})
    assert "there" in submit.dry_run(JOBS[what]("there"), "local_cwd")
    cluster = JOBS[what]("/of/the/cluster")
    assert "/of/the/cluster" in submit.dry_run(cluster, "slurm", {"partition": "gpu"})


def test_a_model_is_no_folder_and_a_known_machine_no_file(folder):
    assert "m:f" in submit.dry_run(components.serve_bench(served="m:f"), "local_cwd")


def test_torchx_itself_says_so(folder):
    """Of its own errors, ours is one that it tells without a traceback."""
    command = [str(Path(sys.executable).parent / "torchx"), *DRY_RUN.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "--profile 'nowhere': no such file or folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (lambda: components.serve_bench(served="m:f", h="nope"), "No named resource found for `nope`"),
        (lambda: components.serve_bench(served="m:f", mounts=["foo"]), "unknown mount option foo"),
        (lambda: components.train(script="s.py", j="3x"), "Invalid format for -j"),
        (lambda: components.convert(model="m:f", plan="installed", out="s"), "is installed a plan f"),
    ],
    ids=["resource", "mounts", "nodes", "plan"],
)  # fmt: skip
def test_what_makes_no_job_is_refused_as_torchx_tells_it(folder, job, told):
    with pytest.raises(ComponentValidationException, match=told) as error:
        job()
    assert isinstance(error.value, grace.GraceError)
    assert "\n" not in str(error.value)
