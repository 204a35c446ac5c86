"""Run the fast tests under other releases of torchrec, each with its own torch and fbgemm.

    python tests/compat/run.py                 torchrec 1.7 and 1.9, where the registry has CPU builds
    python tests/compat/run.py --cuda-torch    also where torch is a CUDA build (some GB each)
    python tests/compat/run.py 1.7 -- tests/modules

Each set gets an environment of its own (``--venvs``), kept for the next run.  A set that cannot be had
is said, with what the registry offers instead, and is no failure; a red test is.  Releases that belong
together stand in ``grace_torchrec/doctor/known_good.py``.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = f"{ROOT}:{ROOT / 'triton_kernels'}:{ROOT / 'sharding'}"
sys.path[:0] = PATHS.split(":")

from grace_torchrec.doctor.known_good import KNOWN_GOOD, KnownGood, minor  # noqa: E402

FAST = (
    "tests/modules",
    "tests/serve",
    "tests/plans",
    "tests/traces",
    "tests/sums",
    "tests/test_api.py",
)


def main() -> int:
    """Install and test every set that was asked for; say what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("torchrec", nargs="*", default=["1.7", "1.9"], help="minor releases")
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "grace-compat")
    parser.add_argument("--cuda-torch", action="store_true", help="take CUDA builds of torch too")
    own, tests = _split(sys.argv[1:])
    options = parser.parse_args(own)
    red = False
    for wanted in options.torchrec:
        row = next((row for row in KNOWN_GOOD if minor(row.torchrec) == minor(wanted)), None)
        if row is None:
            parser.error(f"torchrec {wanted}: not in known_good.py")
        reason = why_not(row, options.cuda_torch)
        if reason is not None:
            say(row, f"could not be had: {reason}")
            continue
        python = install(row, options.venvs)
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests or FAST)],
            cwd=ROOT, env={"PYTHONPATH": PATHS, "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
            check=False,
        )  # fmt: skip
        say(row, "tests green" if done.returncode == 0 else f"tests red ({done.returncode})")
        red |= done.returncode != 0
    return int(red)


def why_not(row: KnownGood, cuda_torch: bool) -> str | None:
    """Return why a set cannot be installed here, None if it can."""
    for name in requirements(row):
        found = offered(name)
        if isinstance(found, str):
            return f"{name}: {found}"
        needs = [
            need
            for need in found["metadata"].get("requires_dist", [])
            if "nvidia" in need or "cuda" in need
        ]
        if name.startswith("torch==") and needs and not cuda_torch:
            return (
                f"{name}: the registry has a CUDA build only (it requires {len(needs)} CUDA packages, "
                f"e.g. {needs[0].split(';')[0].strip()}); put a CPU wheel index into pip's "
                "configuration, or pass --cuda-torch"
            )
    return None


def requirements(row: KnownGood) -> tuple[str, str, str]:
    """Return what makes a set."""
    return f"torch=={row.torch}", f"fbgemm-gpu-cpu=={row.fbgemm}", f"torchrec=={row.torchrec}"


def offered(requirement: str) -> dict | str:
    """Return what pip would install for a requirement alone, or its error."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed",
         "--quiet", "--report", "-", requirement],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)["install"][0]


def bounded_by(row: KnownGood) -> set[str]:
    """Return the packages that torch, torchrec and fbgemm ask for themselves."""
    needs: list[str] = []
    for name in requirements(row):
        found = offered(name)
        if not isinstance(found, str):
            needs += found["metadata"].get("requires_dist", [])
    return {re.split(r"[^\w.-]", need)[0].lower().replace("_", "-") for need in needs}


def install(row: KnownGood, venvs: Path) -> Path:
    """Make the environment of a set, or bring it up to date; return its python."""
    folder = venvs / f"torchrec-{row.torchrec}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    shim = folder / "shim"
    shutil.copytree(ROOT / "requirements" / "fbgemm-gpu-shim", shim, dirs_exist_ok=True)
    project = shim / "pyproject.toml"
    text = re.sub(r'version = "[\d.]+\+', f'version = "{row.fbgemm}+', project.read_text())
    project.write_text(re.sub(r"fbgemm-gpu-cpu==[\d.]+", f"fbgemm-gpu-cpu=={row.fbgemm}", text))
    pins = {
        "torch": row.torch,
        "torchrec": row.torchrec,
        "fbgemm-gpu-cpu": row.fbgemm,
        "triton": row.triton,
    }
    lines, theirs = [str(shim)], bounded_by(row)
    for line in (ROOT / "requirements" / "cpu.txt").read_text().splitlines():
        name = line.partition("==")[0]
        if "==" in line and not line.startswith("#"):
            if name in pins:
                line = f"{name}=={pins[name]}"
            elif name in theirs:
                line = name  # in the release that they can be installed with
            lines.append(line)
    if "iopath" in row.torchrec_needs:
        lines.append("iopath")
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(lines) + "\n")
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", wanted], check=True)
    return python


def say(row: KnownGood, what: str) -> None:
    """Print one line for a set."""
    told = f"torchrec {row.torchrec} (torch {row.torch}, fbgemm {row.fbgemm}): {what}"
    sys.stdout.write(told + "\n")
    sys.stdout.flush()


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return our arguments and those for pytest, which follow ``--``."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
