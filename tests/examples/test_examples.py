"""Every example runs as a user runs it, in an empty folder, and prints what the README shows."""

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(name, folder):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
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
        assert f"    {line}" in document
    assert list(tmp_path.iterdir()) == []


def test_examples_stay_short():
    for example in (ROOT / "examples").glob("*.py"):
        assert len(example.read_text(encoding="utf-8").splitlines()) < 80, example.name
