"""Every example runs as a user runs it, in an empty folder, and prints what the README shows."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grace_torchrec.launch import components, submit

ROOT = Path(__file__).parents[2]


def run(name, folder, *args, quiet=False):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *args],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (quiet and done.stderr), done.stderr
    return done.stdout


def test_swap_a_dlrm_prints_what_the_readme_shows(tmp_path):
    printed = run("swap_a_dlrm.py", tmp_path).strip().splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for line in printed:  # the last digits of an error depend on the processor
        assert f"    {line.rpartition(', max error')[0] or line}" in readme
    assert len(printed) == 4
    assert list(tmp_path.iterdir()) == []


def test_a_dlrm_is_served_by_three_more_lines_and_scores_the_same(tmp_path):
    stock, served = (
        (ROOT / "examples" / name).read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
        for name in ("dlrm_main.py", "dlrm_main_served.py")
    )
    changed = [
        line for line in difflib.ndiff(stock, served) if line[0] in "+-" and line[1:].strip()
    ]
    assert len(changed) == 3
    assert all(line.startswith("+ ") for line in changed)
    printed = run("dlrm_main.py", tmp_path)
    assert printed.startswith("AUROC over test set: 0.")
    assert run("dlrm_main_served.py", tmp_path) == printed


def test_shard_a_dlrm_answers_as_the_unsharded_model(tmp_path):
    printed = run("shard_a_dlrm.py", tmp_path)
    assert "equal to the unsharded model within 1e-6 on both ranks: True" in printed
    document = (ROOT / "docs" / "ranks.md").read_text(encoding="utf-8")
    for line in printed.splitlines():
        assert f"\n{line}\n" in document
    assert list(tmp_path.iterdir()) == []


def numbers(printed, line):
    """The numbers of the line that begins so."""
    (found,) = [each for each in printed.splitlines() if each.startswith(line)]
    return re.findall(r"\d+\.\d+(?:e-\d+)?", found)


def check_training(printed, int8_worse):
    """fp32 serves what was trained; int8 ranks as well as TorchRec's int8, or that much worse."""
    assert "t_item: use, cut" in printed
    trained, served = numbers(printed, "fp32: AUROC")
    assert len(trained) == len("0.123456")
    assert trained == served
    assert float(numbers(printed, "fp32: largest difference of logits")[0]) <= 1e-5
    stock, ours = map(float, numbers(printed, "int8: AUROC"))
    assert ours >= stock - int8_worse
    return float(trained)


def test_a_dlrm_is_trained_checkpointed_planned_and_served(tmp_path):
    printed = run("train_then_serve.py", tmp_path, "--users", "2500", "--epochs", "1", quiet=True)
    check_training(printed, int8_worse=2e-3)  # 500 users held out: a pair of them weighs 2e-5
    left = {path.name for path in (tmp_path / "trained").iterdir()}
    assert left == {"checkpoint", "held-out", "plan", "profile-0", "served", "tensorboard"}
    (file,) = (tmp_path / "trained" / "tensorboard" / "rank-0").iterdir()
    events = EventAccumulator(str(file)).Reload()
    assert {"loss/total", "metric/auroc"} <= set(events.Tags()["scalars"])


def test_an_example_keeps_what_it_was_not_told_to_replace(tmp_path):
    (tmp_path / "trained").mkdir()
    command = [sys.executable, ROOT / "examples" / "train_then_serve.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode != 0
    assert done.stderr.endswith(
        "error: trained is there already: give -o trained to write there again\n"
    )
    assert list((tmp_path / "trained").iterdir()) == []


@pytest.mark.soak
def test_a_dlrm_trained_in_full_learns_and_is_served(tmp_path):
    assert check_training(run("train_then_serve.py", tmp_path), int8_worse=1e-4) > 0.6


@pytest.mark.soak
def test_two_ranks_train_as_a_job_and_their_checkpoint_is_planned_and_converted(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    source = (ROOT / "examples", ROOT, ROOT / "triton_kernels", ROOT / "sharding")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, source)))
    script = str(ROOT / "examples" / "train_a_dlrm.py")
    jobs = {
        "train": lambda: components.train("--users", "2500", "--epochs", "1", script=script),
        "plan": lambda: components.plan(
            model="history_dlrm:trained", profile="trained/profile-0", memory="a40"
        ),
        "convert": lambda: components.convert(
            model="history_dlrm:trained", plan="plan", out="served"
        ),
    }
    for name, job in jobs.items():
        assert submit.run(job(), "local_cwd") == "SUCCEEDED", name
    assert (tmp_path / "trained" / "profile-1").is_dir()
    assert (tmp_path / "served" / "served.json").is_file()


def test_ctrl_c_ends_every_example_without_a_traceback():
    """Each calls its main so; those that begin as a script of TorchRec's do it by Python's own means."""
    for example in (ROOT / "examples").glob("*.py"):
        text = example.read_text(encoding="utf-8")
        if "__main__" in text:
            assert text.endswith("    run(main)\n") or "signal.SIGINT, signal.SIG_DFL" in text


def test_examples_stay_short():
    for example in (ROOT / "examples").glob("*.py"):
        assert len(example.read_text(encoding="utf-8").splitlines()) < 80, example.name
