"""From a fresh clone with nothing but the README: every step works as it stands there."""

import json
import re
import shutil

import pytest

pytestmark = pytest.mark.soak


def test_the_first_command_installs_and_runs_the_whole_job(stranger, first_run):
    assert "outputs: equal to the stock model within rounding" in first_run.out
    made = stranger.clone / "grace-demo"
    assert {path.name for path in made.iterdir()} >= {"plan", "profile", "report.html"}
    assert (made / "report.html").read_text(encoding="utf-8").startswith("<!")
    changed = stranger.run("git status --short", folder=stranger.clone).out
    assert changed == ""  # all that an installation leaves is ignored


def test_the_tests_run(stranger):
    assert "make test" in stranger.commands("make test")
    quick = "python -m pytest -q tests/contracts tests/sums"
    assert " passed" in stranger.run(quick, folder=stranger.clone).out


def test_the_doctor_finds_nothing(stranger):
    assert "healthy" in stranger.run(stranger.says("grace-torchrec doctor")).out


def test_a_log_of_ones_own(demo_folder):
    assert {path.name for path in demo_folder.iterdir()} >= {"plan", "profile", "report.html"}


def test_the_swap_in_a_plain_dlrm(stranger):
    setup, swap = (
        block.text
        for kind in ("setup", "python")
        for block in stranger.blocks()
        if block.kind == kind
        and ("accelerate_" in block.text if kind == "python" else "make()" in block.text)
    )
    told = "\nprint(sorted(t for tables in swapped.modules.values() for t in tables))\n"
    script = stranger.folder / "swap.py"
    script.write_text(
        setup + "\n" + swap.replace("assert", "proof =") + told + "assert proof.equal\n"
    )
    assert "t_item" in stranger.run("python swap.py").out


def test_profile_plan_inspect_diff_report(stranger):
    for command in stranger.commands("grace-torchrec profile LOG"):
        if command.startswith("grace-torchrec diff"):  # two plans that they have
            for name in ("old", "new"):
                shutil.copytree(stranger.folder / "plan", stranger.folder / name)
        stranger.run(command)
    page = (stranger.folder / "report.html").read_text(encoding="utf-8")
    assert "t_item" in page


@pytest.mark.parametrize("start", ["grace-torchrec serve-bench", "torchx run"])
def test_serving_and_jobs(stranger, start):
    if start == "torchx run":
        stranger.run("grace-torchrec profile LOG --table t_item --feature item -o profile")
        plan = stranger.folder / "plan"  # there after the commands before it
        stands = plan.exists()
        plan.mkdir(exist_ok=True)
        stranger.run(stranger.says(start))
        if not stands:
            plan.rmdir()
        assert (stranger.folder / "plan_h200" / "plan.json").is_file()
        return
    command = stranger.says(start) + " --rounds 1 --requests 40 --json"
    found = json.loads(stranger.run(command).out)
    assert found["errors"] == 0
    assert set(found["clients"]) == {"1", "8", "30"}


def test_examples_and_a_benchmark(stranger):
    readme = (stranger.clone / "README.md").read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"`python (examples/\w+\.py)`", readme))):
        stranger.run(["python", str(stranger.clone / name)])
    command = stranger.says("python -m bench traffic")
    command = command.replace("--trace F", f"--trace {stranger.folder / 'LOG'}")
    lines = stranger.run(command, folder=stranger.clone).out.splitlines()
    assert 0 < json.loads(lines[-1])["cut"] < 1
