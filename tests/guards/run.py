"""Apply each patch of this folder to a copy of the repository; its tests must turn red.

A patch is a unified diff against the repository root that breaks the code in one way. Lines before
the diff name the tests that must notice, a pytest node id or a ``-k`` expression each:

    # test: tests/doctor/test_diagnose.py::test_following_the_printed_lines_heals
    # test: rewrite and duplicates

The named tests run unpatched first and must be green. Two copies work side by side. A patch of a
folder with compiled code has caches of its own, so no function of one patch serves another; the
others find what their copy has compiled already.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
IMPORT_FOLDERS = (".", "triton_kernels", "sharding")
PACKAGES = ("grace_torchrec", "grace_kernels", "grace_sharding")
COMPILED = ("triton_kernels/", "grace_torchrec/grouping/", "grace_torchrec/schedule/")
NUM_COPIES = 2
RUN_SECONDS = 900
GREEN, RED = 0, 1  # pytest's exit codes; any other is an error of the run itself


@dataclass(frozen=True)
class Guard:
    """One patch and the tests that must notice it: node ids and ``-k`` expressions."""

    patch: Path
    nodes: tuple[str, ...]
    keywords: tuple[str, ...]
    compiled: bool  # it changes a folder with compiled code


@dataclass(frozen=True)
class Verdict:
    """What became of one patch; ``red`` is what is wanted, everything else is in ``why``."""

    guard: Guard
    red: bool
    why: str
    seconds: float


def read_guard(patch: Path) -> Guard:
    """Read the header of a patch.

    Raises:
        ValueError: no ``# test:`` line stands before the diff.
    """
    text = patch.read_text(encoding="utf-8")
    header = re.split(r"^(?:diff |--- )", text, maxsplit=1, flags=re.M)[0]
    named = [line.strip() for line in re.findall(r"^# test:(.*)$", header, flags=re.M)]
    if not named or not all(named):
        raise ValueError(
            f"{patch.name}: no '# test: NODE-ID or -k EXPRESSION' line before the diff"
        )
    nodes = tuple(name for name in named if name.startswith("tests/"))
    changed = re.findall(r"^\+\+\+ b/(.*)$", text, flags=re.M)
    compiled = any(file.startswith(COMPILED) for file in changed)
    return Guard(patch, nodes, tuple(name for name in named if name not in nodes), compiled)


def copy_repository(target: Path) -> Path:
    """Copy what git tracks or would track, no caches and no build outputs; return ``target``."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_file():  # a deleted file is still listed until it is committed
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    return target


def environment(copy: Path, caches: Path) -> dict[str, str]:
    """Environment in which Python imports ``copy`` and compiles into ``caches``.

    Byte code is not written: a patch that keeps a file's size and second would run the old one.
    """
    folders = [str((copy / folder).resolve()) for folder in IMPORT_FOLDERS]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "GIT_CEILING_DIRECTORIES": str(copy.parent),  # git apply must see no repository around
    }


def run_tests(copy: Path, caches: Path, arguments: Iterable[str]) -> tuple[int, str]:
    """Run pytest in ``copy``; return its exit code and the last line it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        result = subprocess.run(
            command,
            cwd=copy,
            env=environment(copy, caches),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {RUN_SECONDS} s"
    lines = (result.stdout + result.stderr).strip().splitlines()
    return result.returncode, lines[-1] if lines else ""


def selections(guards: Iterable[Guard]) -> list[list[str]]:
    """Arguments of the pytest calls that run every test the guards name: node ids, then keywords."""
    guards = list(guards)
    nodes = list(dict.fromkeys(node for guard in guards for node in guard.nodes))
    keywords = dict.fromkeys(word for guard in guards for word in guard.keywords)
    calls = [nodes] if nodes else []
    if keywords:
        calls.append(["-k", " or ".join(f"({word})" for word in keywords)])
    return calls


def check_copy(copy: Path) -> None:
    """Make sure that the copy is what Python imports there, not an installed package.

    Raises:
        RuntimeError: a package is found elsewhere.
    """
    script = f"import {', '.join(PACKAGES)}; print(*(m.__file__ for m in ({', '.join(PACKAGES)})))"
    env = environment(copy, copy / ".caches")
    output = subprocess.run(
        [sys.executable, "-c", script],
        cwd=copy,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for file in output.split():
        if not Path(file).resolve().is_relative_to(copy.resolve()):
            raise RuntimeError(f"{file} is imported instead of the copy in {copy}")


def git_apply(copy: Path, patch: Path, *options: str) -> str:
    """Apply a patch in ``copy``; return git's complaint, empty if it applied."""
    command = ["git", "apply", *options, str(patch)]
    env = environment(copy, copy / ".caches")
    result = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stderr.strip().splitlines()[0]


@contextlib.contextmanager
def caches_of(copy: Path, guard: Guard) -> Iterator[Path]:
    """Folder of compiled code: of this patch alone, or what all patches of Python share."""
    if not guard.compiled:
        yield copy.parent / "caches"
        return
    with tempfile.TemporaryDirectory(prefix="caches-", dir=copy.parent) as folder:
        yield Path(folder)


def try_guard(copy: Path, guard: Guard, options: list[str]) -> Verdict:
    """Apply one patch, run its tests, take the patch back."""
    start = time.monotonic()
    complaint = git_apply(copy, guard.patch)
    if complaint:
        return Verdict(guard, False, complaint, time.monotonic() - start)
    with caches_of(copy, guard) as caches:
        outcomes = [run_tests(copy, caches, [*call, *options]) for call in selections([guard])]
    complaint = git_apply(copy, guard.patch, "--reverse")
    if complaint:
        raise RuntimeError(f"{guard.patch.name} cannot be taken back: {complaint}")
    return Verdict(guard, *judge(outcomes), time.monotonic() - start)


def judge(outcomes: list[tuple[int, str]]) -> tuple[bool, str]:
    """Red if some named test failed and no run broke down; else why not."""
    for code, last in outcomes:
        if code not in (GREEN, RED):
            return False, f"pytest ended with {code}: {last}"
    red = any(code == RED for code, _ in outcomes)
    return red, "" if red else f"stayed green: {outcomes[-1][1]}"


def try_all(
    copies: list[Path], guards: list[Guard], options: list[str], console: Console
) -> list[Verdict]:
    """Try every guard, each in a copy that no other uses meanwhile; say at once what is not red."""
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)

    def one(guard: Guard) -> Verdict:
        copy = free.get()
        try:
            verdict = try_guard(copy, guard, options)
        finally:
            free.put(copy)
        if not verdict.red:
            console.print(f"{guard.patch.name}: {verdict.why}", markup=False)
        progress.advance(task)
        return verdict

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(len(copies)) as pool,
    ):
        task = progress.add_task("patches", total=len(guards))
        return list(pool.map(one, guards))


def show(verdicts: list[Verdict], print_: Callable[..., None]) -> None:
    """Print the table of patches."""
    table = Table("patch", Column("test", overflow="fold"), "red?", "s")
    for verdict in verdicts:
        tests = "\n".join([*verdict.guard.nodes, *verdict.guard.keywords])
        seconds = f"{verdict.seconds:.1f}"
        table.add_row(
            verdict.guard.patch.name, tests, "red" if verdict.red else verdict.why, seconds
        )
    print_(table)
    num_red = sum(verdict.red for verdict in verdicts)
    print_(f"{num_red} of {len(verdicts)} patches turned their tests red")


def main() -> int:
    """Run all guards, or those named; 0 if each turned red, 1 if not, 2 if that cannot be said."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("patches", nargs="*", type=Path, help="patch files (default: all here)")
    parser.add_argument("--traces", type=Path, help="folder of real traces, handed to pytest")
    arguments = parser.parse_args()
    options = ["--traces", str(arguments.traces.resolve())] if arguments.traces else []
    console = Console()
    patches = [patch.resolve() for patch in arguments.patches] or sorted(FOLDER.glob("*.patch"))
    try:
        guards = [read_guard(patch) for patch in patches]
    except (OSError, ValueError) as error:
        console.print(f"error: {error}", markup=False)
        return 2
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        copies = [copy_repository(Path(folder, f"copy{k}")) for k in range(NUM_COPIES)]
        for copy in copies:
            check_copy(copy)
        for call in selections(guards):
            code, last = run_tests(copies[0], Path(folder, "caches"), [*call, *options])
            if code != GREEN:
                console.print(
                    f"error: the tests are not green without a patch: {last}", markup=False
                )
                return 2
        verdicts = try_all(copies, guards, options, console)
    show(verdicts, console.print)
    return 0 if all(verdict.red for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
