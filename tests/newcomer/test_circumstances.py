"""Machines and accounts that are not the author's: little memory, nothing writable, other letters."""

import html.parser
import os
import shutil
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.soak
NEEDS_A_SWAP = ("convert", "demo", "plan", "serve-bench")  # TorchRec's classes are their matter
CAPABILITIES = "--bounding-set=-dac_override,-dac_read_search"
LETTERS = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LANG": None},
    "latin-1": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
    "strict ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"},
}


def test_eight_gib_are_enough(stranger, first_run):
    """Every command is ended that passes 8 GiB (see conftest); the largest two were seen at work."""
    stranger.run("grace-torchrec profile LOG --table t_item --feature item -o of-eight")
    plan = stranger.run(
        "grace-torchrec plan my.module:make --profile of-eight --memory a40 -o eight"
    )
    for ran in (first_run, plan):
        assert ran.peak_bytes > 100 << 20, f"{ran.command}: nobody watched it"


def test_help_needs_nothing(stranger, without_torchrec):
    for command in sub_commands(stranger):
        told = without_torchrec.run(f"grace-torchrec {command} --help")
        assert told.out.startswith("Usage: grace-torchrec")
        assert told.out.isascii()  # so it can be shown everywhere
        assert told.complaints == ""


def test_without_fbgemm_analysis_works(stranger, without_torchrec, demo_folder):
    run, plan = without_torchrec.run, demo_folder / "plan"
    run("grace-torchrec profile LOG --table t_item --feature item -o P")
    assert "t_history" in run(f"grace-torchrec inspect {plan}").out
    run(f"grace-torchrec diff {plan} {plan}")
    run(f"grace-torchrec report {plan} --profile {demo_folder / 'profile'}")
    run("grace-torchrec schedule bst --prove --svg bst.svg")
    run("grace-torchrec simulate bst --clients 1 --queries 2")
    traffic = f"python -m bench traffic --trace {stranger.folder / 'LOG'} --method auto --json"
    run(traffic, folder=stranger.clone)
    doctor = run("grace-torchrec doctor", code=1)
    assert "pip install" in doctor.out
    assert "fbgemm" in doctor.out


def test_without_fbgemm_the_rest_says_what_it_needs(stranger, without_torchrec, demo_folder):
    arguments = {
        "convert": f"my_model:make {demo_folder / 'plan'} -o S",
        "demo": "--trace LOG",
        "plan": f"my_model:make --profile {demo_folder / 'profile'} --memory a40",
        "serve-bench": "my_model:make",
    }
    for command in NEEDS_A_SWAP:
        told = without_torchrec.run(f"grace-torchrec {command} {arguments[command]}", code=2)
        assert told.out == ""
        assert told.err.count("\n") == 1
        assert told.err.startswith("error: ")
        assert "torchrec" in told.err


def test_nothing_is_writable_but_the_working_folder(stranger, empty):
    """Modes bind root, too, once it gives up the right to override them."""
    under = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("other: root overrides modes, and there is no setpriv")
        under = ["setpriv", CAPABILITIES]
    home, work, sources = empty / "home", empty / "work", empty / "sources"
    for folder in (home, work):
        folder.mkdir()
    for name in ("grace_torchrec", "triton_kernels/grace_kernels", "sharding/grace_sharding"):
        ignore = shutil.ignore_patterns("__pycache__")  # nor machine code of earlier runs
        shutil.copytree(stranger.clone / name, sources / Path(name).name, ignore=ignore)
    for folder, _, files in os.walk(sources):
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    home.chmod(0o555)
    here = {"HOME": str(home), "PYTHONPATH": str(sources), "XDG_CACHE_HOME": None}
    where = (
        "python -c 'import grace_kernels as k, grace_torchrec as g; print(k.__file__, g.__file__)'"
    )
    assert stranger.run(where, under=under, **here).out.count(str(sources)) == 2
    denied = stranger.run(f"touch {home}/x {sources}/x", under=under, code=1, **here)
    assert denied.err.count("denied") == 2
    log, demo = stranger.folder / "LOG", work / "grace-demo"
    ran = stranger.run(f"grace-torchrec demo --trace {log}", folder=work, under=under, **here)
    assert "outputs: equal to the stock model within rounding" in ran.out
    assert ran.complaints == ""
    stranger.run(f"grace-torchrec inspect {demo / 'plan'}", folder=work, under=under, **here)
    assert [path.name for path in work.iterdir()] == ["grace-demo"]


@pytest.mark.parametrize("letters", ["ascii", "latin-1"])
def test_other_letters(stranger, demo_folder, empty, letters):
    """Where a terminal knows no box or umlaut, text still comes out; files are UTF-8 everywhere."""
    given, plan = LETTERS[letters], demo_folder / "plan"
    demo = f"grace-torchrec demo --trace {stranger.folder / 'LOG'} --out {empty / 'demo'}"
    assert "outputs: equal" in stranger.run(demo, **given).out
    for form in ("", "--format markdown"):
        assert "t_history" in stranger.run(f"grace-torchrec inspect {plan} {form}", **given).out
        stranger.run(f"grace-torchrec diff {plan} {empty / 'demo' / 'plan'} {form}", **given)
    page, picture = empty / "page.html", empty / "bst.svg"
    stranger.run(f"grace-torchrec report {plan} -o {page}", **given)
    stranger.run(f"grace-torchrec schedule bst --svg {picture}", **given)
    html.parser.HTMLParser().feed(page.read_text(encoding="utf-8"))
    ElementTree.fromstring(picture.read_bytes().decode("utf-8"))


@pytest.mark.parametrize("letters", [*LETTERS, "utf-8"])
def test_other_letters_in_the_log_and_in_paths(stranger, empty, make_log, letters):
    given = LETTERS.get(letters, {"LC_ALL": "C.UTF-8"})
    folder = empty / "Einkäufe 2026 名"
    folder.mkdir()
    log = make_log(folder / "Käufe.csv", item="Brötchen {}")
    profile = "grace-torchrec profile Käufe.csv --remap Namen.txt -o Profil"
    assert "300 items" in stranger.run(profile, folder=folder, **given).out
    names = (folder / "Namen.txt").read_text(encoding="utf-8").splitlines()
    assert names[0].startswith("Brötchen ")
    log.write_text("user,item\nä,ö,\n", encoding="utf-8")
    for wrong in ("Käufe.csv", "fehlt.csv"):  # errors name the path, or what can be shown of it
        refused = stranger.run(
            ["grace-torchrec", "profile", wrong, "-o", "P"], folder=folder, code=2, **given
        )
        assert refused.err.startswith("error: ")
        assert refused.err.count("\n") == 1


@pytest.mark.parametrize("place", ["/", "a folder é 名"])
def test_another_working_folder(stranger, empty, place):
    """Paths are the caller's, relative or not; nothing is looked for beside the sources."""
    folder = empty / place  # "/" stays "/"
    folder.mkdir(exist_ok=True)
    before = set(folder.iterdir())
    relative = place != "/"
    out = Path("mine") if relative else empty / "mine"
    run = lambda *words: stranger.run(["grace-torchrec", *map(str, words)], folder=folder)  # noqa: E731
    run("demo", "--trace", stranger.folder / "LOG", "--out", out)
    run("inspect", out / "plan")
    run("report", out / "plan", "--profile", out / "profile", "-o", out / "page of mine.html")
    run("schedule", "bst", "--svg", out / "bst.svg", "--save-stats", out / "costs.json")
    run("calibrate", "-o", out / "here.json")
    made = folder / out
    assert {path.name for path in made.iterdir()} >= {"page of mine.html", "bst.svg", "here.json"}
    assert set(folder.iterdir()) - before == ({made} if relative else set())


def sub_commands(stranger):
    """The names that --help lists."""
    told = stranger.run("grace-torchrec --help").out.partition("Commands:")[2]
    return [
        line.split()[0] for line in told.splitlines() if line.startswith("  ") and line[2] != " "
    ]
