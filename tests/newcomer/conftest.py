"""A stranger: a fresh clone, an environment made as the README says, and nothing else.

Commands run in processes of their own, with none of the variables that this test run may have set.
Memory is watched, not limited: an address space (RLIMIT_AS) says nothing about a program that maps
torch, and a cgroup needs rights that most machines do not give. A thread adds up the peak resident
sizes (VmHWM) of all processes of a command four times a second and ends those that pass 8 GiB; pages
that processes share count once for each, so the sum is never too small.
"""

import importlib.util
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 8 << 30
OURS = re.compile(r"PYTHON|VIRTUAL_ENV|NUMBA|TORCH|TRITON|PYTEST|OMP_|MKL_|COV|MAKE|MFLAGS|GRACE")
ITEMS, USERS, GROUP = 300, 600, 12  # as many items as the model of tests/docs has rows

_spec = importlib.util.spec_from_file_location(
    "grace_docs_conftest", ROOT / "tests" / "docs" / "conftest.py"
)
assert _spec is not None
_docs: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _docs  # its dataclass asks for its module
_spec.loader.exec_module(_docs)
_ran: list["Ran"] = []


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    Attributes:
        command: As it was given.
        code: Exit code.
        out: Standard output.
        err: Standard error.
        peak_bytes: Resident at most, all its processes together.
        seconds: Wall time.
    """

    command: str
    code: int
    out: str
    err: str
    peak_bytes: int
    seconds: float

    @property
    def complaints(self) -> str:
        """Standard error without the lines of progress of a slow machine."""
        return re.sub(r"^\d+ s: .*\n", "", self.err, flags=re.MULTILINE)


@dataclass(frozen=True)
class Stranger:
    """Someone with a clone and its README.

    Attributes:
        clone: The clone.
        folder: Where they work: their model, their log.
        environment: What their shell has set.
    """

    clone: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self,
        command: str | Sequence[str],
        *,
        folder: Path | None = None,
        code: int = 0,
        under: Sequence[str] = (),
        **given: str | None,
    ) -> Ran:
        """Run one command in a shell; it must end with ``code``, and never in a traceback.

        Args:
            command: A line of a shell, or words.
            folder: Working folder; default: the stranger's.
            code: Wanted exit code.
            under: Words before it, as ``setpriv``.
            given: Variables set; None: taken away.
        """
        text = command if isinstance(command, str) else shlex.join(command)
        set_ = {**self.environment, **given}
        ran = _watched(text, [*under, "bash", "-c", text], folder or self.folder,
                       {name: value for name, value in set_.items() if value is not None})  # fmt: skip
        _ran.append(ran)
        told = f"{ran.command}: exit code {ran.code}\n{ran.out[-3000:]}\n{ran.err[-3000:]}"
        assert ran.peak_bytes <= LIMIT_BYTES, f"more than 8 GiB resident: {told}"
        assert ran.code == code, told
        assert "Traceback" not in ran.out + ran.err, told
        return ran

    def says(self, start: str) -> str:
        """Return the one command in the running text of the README that starts so."""
        text = (self.clone / "README.md").read_text(encoding="utf-8")
        (found,) = {code for code in re.findall(r"`([^`\n]+)`", text) if code.startswith(start)}
        return found

    def blocks(self) -> list[Any]:
        """Return the blocks of the README, as the tests of the pages find them."""
        found: list[Any] = _docs.blocks_of(self.clone / "README.md")
        return found

    def commands(self, start: str) -> list[str]:
        """Return the commands of the one block of the README that has one that starts so."""
        (block,) = [
            lines
            for lines in map(_commands, self.blocks())
            if any(line.startswith(start) for line in lines)
        ]
        return block


def _commands(block: Any) -> list[str]:
    """Return the lines of a block of commands, without their comments."""
    if block.kind != "sh":
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def _watched(text: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ran:
    """Run words to their end, in a session of their own, and watch its memory."""
    began, peak = time.monotonic(), 0
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.25):
            peak = max(peak, resident_bytes(process.pid))
            if peak > LIMIT_BYTES:
                os.killpg(process.pid, signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        out, err = process.communicate()
    finally:
        ended.set()
        watcher.join()
    seconds = time.monotonic() - began
    decoded = (part.decode("utf-8", "replace") for part in (out, err))
    return Ran(text, process.returncode, *decoded, peak, seconds)


def resident_bytes(session: int) -> int:
    """Return the peak resident sizes of all living processes of a session, added up."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                found = re.search(r"VmHWM:\s+(\d+) kB", (entry / "status").read_text())
                total += int(found[1]) << 10 if found else 0
        except OSError:  # it has ended
            continue
    return total


def write_log(path: Path, item: str = "{}", user: str = "u{}") -> Path:
    """Write a log as shops keep it: one purchase a line; people with one taste buy alike."""
    draw, lines = random.Random(0), ["user,item,time"]
    for number in range(USERS):
        taste = draw.randrange(ITEMS // GROUP) * GROUP
        bought = draw.sample(range(taste, taste + GROUP), 9) + draw.sample(range(ITEMS), 3)
        lines += [
            f"{user.format(number)},{item.format(i)},{1_600_000_000 + number}" for i in bought
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """Clone what is committed here, and install it by the first command of the README."""
    if not sys.platform.startswith("linux") or not all(map(shutil.which, ("git", "make", "bash"))):
        pytest.skip("other: a stranger needs Linux, git, make and bash")
    if not (ROOT / ".git").exists():
        pytest.skip("other: this copy is no git checkout, so there is nothing to clone")
    place = tmp_path_factory.mktemp("stranger")
    clone = place / "clone"
    subprocess.run(["git", "clone", "-q", "--local", ROOT, clone], check=True)
    folder = place / "work"
    (folder / "my").mkdir(parents=True)
    for name in ("my/module.py", "my_model.py"):  # "your function that makes the model"
        shutil.copy(clone / "tests" / "docs" / "my_model.py", folder / name)
    (folder / "my_models.py").write_text("from my_model import make as dlrm\n", encoding="utf-8")
    write_log(folder / "LOG")
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    kept["PATH"] = f"{clone / '.venv' / 'bin'}:{kept.get('PATH', os.defpath)}"
    kept["PYTHON"] = str(getattr(sys, "_base_executable", sys.executable))
    someone = Stranger(clone, folder, kept)
    install, *_ = someone.commands("make demo")
    assert install == "make demo"
    someone.run(install, folder=clone)
    return someone


@pytest.fixture(scope="session")
def first_run(stranger: Stranger) -> Ran:
    """What the first command of the README did."""
    return next(ran for ran in _ran if ran.command == "make demo")


@pytest.fixture(scope="session")
def demo_folder(stranger: Stranger) -> Path:
    """What a demo on the stranger's log leaves."""
    command = stranger.says("grace-torchrec demo --trace FILE").replace("FILE", "LOG")
    stranger.run(f"{command} --out small")
    return stranger.folder / "small"


@pytest.fixture(scope="session")
def make_log() -> Callable[..., Path]:
    """:func:`write_log`."""
    return write_log


@pytest.fixture(scope="session")
def wheel_and_sdist(stranger: Stranger) -> dict[str, Path]:
    """Both distributions of the clone, built from it as it stands."""
    out = stranger.clone.parent / "dist"
    stranger.run(["python", "-m", "build", "--no-isolation", "--outdir", str(out)],
                 folder=stranger.clone)  # fmt: skip
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="session")
def installed(stranger: Stranger) -> Callable[..., Stranger]:
    """Return a function that installs a distribution into an environment of its own.

    The environment sees the packages that the clone's has, but for those named: links to them lie in a
    folder that a .pth file adds, so nothing is fetched and nothing of the clone itself is seen.
    """

    def install(distribution: Path, name: str, *lacking: str) -> Stranger:
        place = stranger.clone.parent / name
        seen, work = place / "packages", place / "work"
        seen.mkdir(parents=True)
        (theirs,) = (stranger.clone / ".venv" / "lib").glob("python3*/site-packages")
        for path in theirs.iterdir():
            if not re.match(
                "|".join(["grace", "__editable__", "pip", "distutils", *lacking]), path.name
            ):
                (seen / path.name).symlink_to(path)
        shutil.copytree(stranger.folder, work, ignore=shutil.ignore_patterns("old", "new"))
        stranger.run([stranger.environment["PYTHON"], "-m", "venv", str(place / "venv")])
        (site,) = (place / "venv" / "lib").glob("python3*/site-packages")
        (site / "packages.pth").write_text(f"{seen}\n", encoding="utf-8")
        scripts = f"{place / 'venv' / 'bin'}:{stranger.environment['PATH'].partition(':')[2]}"
        someone = Stranger(stranger.clone, work, {**stranger.environment, "PATH": scripts})
        pip = ["python", "-m", "pip", "install", "-q", "--no-deps"]
        someone.run([*pip, str(distribution)])
        return someone

    return install


@pytest.fixture(scope="session")
def without_torchrec(
    installed: Callable[..., Stranger], wheel_and_sdist: Mapping[str, Path]
) -> Stranger:
    """Someone who installed the wheel where neither TorchRec nor fbgemm is."""
    return installed(
        wheel_and_sdist["wheel"], "bare", "torchrec", "fbgemm", "torchx", "tensorboard"
    )


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A folder of this test alone; what a test has made unwritable is writable again behind it."""
    yield tmp_path
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o755)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was run, how long it took and what it held."""
    if not _ran:
        return
    terminalreporter.write_line("the stranger ran:")
    for ran in _ran:
        figures = f"{ran.seconds:6.1f} s {ran.peak_bytes / 2**30:5.2f} GiB  exit {ran.code}"
        shown = ran.command if len(ran.command) <= 90 else f"{ran.command[:87]}..."
        terminalreporter.write_line(f"  {figures}  {shown}")
