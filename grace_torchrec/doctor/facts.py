"""What is installed here: versions from metadata, imports tried in processes of their own.

Flow: *collect* -> InstallFacts -> :func:`grace_torchrec.doctor.diagnose.diagnose`.
Nothing that may be broken (torch, numpy, fbgemm) is imported in this process, so the facts can be
collected where ``import torch`` fails or kills the interpreter.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution as Metadata
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

FBGEMM_WHEELS = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
WATCHED = (  # every distribution the doctor has an opinion about
    "torch",
    *FBGEMM_WHEELS,
    "torchrec",
    "torchmetrics",
    "triton",
    "numba",
    "numpy",
)
IMPORT_NAMES = ("torch", "fbgemm_gpu", "torchrec", "torchmetrics", "triton", "numba", "numpy")
FOREIGN_NAMES = ("triton_kernels", "sharding")  # import names of other people's packages
OWN_NAMES = ("grace_kernels", "grace_sharding")
PROBES = (
    ("torch", "fbgemm_gpu", "torchrec"),
    ("numpy", "numba"),
    ("triton",),
)  # later need earlier
PROBE_SECONDS = 120  # a cold import of torchrec from a network disk takes tens of seconds
ERROR_CHARS = 8000
MARK = "importing: "  # printed before each import, so that a crash can be attributed


@dataclass(frozen=True)
class Distribution:
    """One installed distribution.

    Attributes:
        name: Normalised name (lower case, dashes).
        version: As its metadata says, local part included (``2.13.0+cpu``).
        requires: Requirements that hold on Linux, extras left out (``numpy>=1.22,<2.6``).
        has_code: False for one that holds metadata only, as a name-only shim does.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    has_code: bool = True

    def asks_for(self, name: str) -> str:
        """The range this distribution wants of ``name`` (``==1.0.3``), empty where it wants none.

        >>> Distribution("numba", "0.68.1", ("llvmlite<0.51", "numpy<2.6,>=1.22")).asks_for("numpy")
        '<2.6,>=1.22'
        """
        wanted = (re.fullmatch(rf"{name}([<>=!~].*)", line) for line in self.requires)
        return next((match.group(1) for match in wanted if match), "")


@dataclass(frozen=True)
class InstallFacts:
    """Everything :func:`grace_torchrec.doctor.diagnose.diagnose` looks at.

    Attributes:
        python: Version of the running interpreter.
        distributions: The watched distributions found, a name twice where it is installed twice.
        torch_build: ``cpu``, ``cuda``, ``rocm``, or empty where torch cannot be found.
        has_gpu: An NVIDIA driver is loaded on this machine.
        has_avx2: The CPU adds eight numbers at once; None where the system does not tell.
        import_errors: Import name -> what its failing import printed; names that import are absent.
        shadows: Import name -> a file or folder that is imported instead of the installed package.
        foreign: ``triton_kernels`` or ``sharding`` -> where another project's package stands.
        missing_own: Packages of this distribution that cannot be found.
    """

    python: str
    distributions: tuple[Distribution, ...] = ()
    torch_build: str = ""
    has_gpu: bool = False
    has_avx2: bool | None = None
    import_errors: Mapping[str, str] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    missing_own: tuple[str, ...] = ()

    def find(self, *names: str) -> Distribution | None:
        """The first of ``names`` that is installed with code in it."""
        for name in names:
            for found in self.distributions:
                if found.name == name and found.has_code:
                    return found
        return None


def collect() -> InstallFacts:
    """Look at this interpreter's installation; takes the seconds that importing torchrec takes."""
    found = _watched()
    specs = {name: _spec(name) for name in (*IMPORT_NAMES, *FOREIGN_NAMES, *OWN_NAMES)}
    regular = {name: spec for name, spec in specs.items() if spec and spec.origin}
    return InstallFacts(
        python=".".join(map(str, sys.version_info[:3])),
        distributions=tuple(_described(metadata) for metadata in found),
        torch_build=_torch_build(regular.get("torch")),
        has_gpu=Path("/proc/driver/nvidia/version").exists(),
        has_avx2=_has_avx2(Path("/proc/cpuinfo")),
        import_errors=_try_imports(regular),
        shadows=_shadows(regular, found),
        foreign={name: str(regular[name].origin) for name in FOREIGN_NAMES if name in regular},
        missing_own=tuple(name for name in OWN_NAMES if specs[name] is None),
    )


def normalised(name: str) -> str:
    """Distribution name as PEP 503 writes it.

    >>> normalised("fbgemm_gpu-cpu")
    'fbgemm-gpu-cpu'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _watched() -> list[Metadata]:
    """Metadata of the watched distributions, each place on the path counted once."""
    found = {}
    for metadata in distributions():
        name = normalised(metadata.metadata["Name"] or "")
        if name in WATCHED:
            place = Path(str(metadata.locate_file(""))).resolve()
            found[name, metadata.version, place] = metadata
    return list(found.values())


def _described(metadata: Metadata) -> Distribution:
    """The few facts of one distribution that a diagnosis needs."""
    return Distribution(
        name=normalised(metadata.metadata["Name"]),
        version=metadata.version,
        requires=tuple(_unconditional(metadata.requires or ())),
        has_code=metadata.files is None
        or any(file.suffix in {".py", ".so"} for file in metadata.files),
    )


def _unconditional(requires: Iterable[str]) -> Iterator[str]:
    """Requirements that hold on Linux whatever extras were asked for, without their markers."""
    for line in requires:
        wanted, _, marker = line.partition(";")
        if not marker or ("linux" in marker.lower() and "extra" not in marker):
            yield wanted.replace(" ", "")


def _spec(name: str) -> ModuleSpec | None:
    """Where ``import name`` would find it, without importing it."""
    try:
        return find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _torch_build(spec: ModuleSpec | None) -> str:
    """Read torch's own version file: which accelerator it was built for."""
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    for build, key in (("cuda", "cuda"), ("rocm", "hip")):
        if re.search(rf"^{key}\b[^=]*=\s*['\"]", text, re.MULTILINE):
            return build
    return "cpu"


def _has_avx2(cpuinfo: Path) -> bool | None:
    """Read the flags of the first CPU as Linux lists them; other processors list none of that name."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = (line.partition(":")[2] for line in lines if re.match(r"(flags|Features)\s*:", line))
    found = next(flags, None)
    return None if found is None else "avx2" in found.split()


def _shadows(specs: Mapping[str, ModuleSpec], found: list[Metadata]) -> dict[str, str]:
    """Import names that resolve to something else than the installed distribution's files."""
    places = [Path(str(metadata.locate_file(""))).absolute() for metadata in found]
    homes = {*places, *(place.resolve() for place in places)}
    editable = any(
        "editable" in (metadata.read_text("direct_url.json") or "") for metadata in found
    )
    shadows = {}
    for name in IMPORT_NAMES:
        here = PathFinder.find_spec(name, [os.getcwd()])
        if here is not None and here.origin is not None and Path.cwd().resolve() not in homes:
            shadows[name] = here.origin
        elif name in specs and not editable:
            origin = Path(str(specs[name].origin)).absolute()
            ways = (origin, origin.resolve())  # some installers put links to one store of packages
            if not any(way.is_relative_to(home) for way in ways for home in homes):
                shadows[name] = str(origin)
    return shadows


def _try_imports(names: Collection[str]) -> dict[str, str]:
    """Import ``names`` in processes of their own; what the first failing one of each probe printed."""
    probes = [[name for name in probe if name in names] for probe in PROBES]
    failures: dict[str, str] = {}
    for started in [_start_probe(probe) for probe in probes if probe]:
        failures |= _outcome(started)
    return failures


def _start_probe(names: list[str]) -> "subprocess.Popen[str]":
    """Start an interpreter that says each name and then imports it."""
    steps = (f"print({MARK + name!r}, flush=True); import {name}" for name in names)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", "; ".join(steps)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _outcome(probe: "subprocess.Popen[str]") -> dict[str, str]:
    """Nothing if every import worked, otherwise the failing name and what it printed."""
    try:
        printed, _ = probe.communicate(timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        probe.kill()
        printed, _ = probe.communicate()
        printed += f"\nthe import did not finish in {PROBE_SECONDS} s"
    if probe.returncode == 0:
        return {}
    if probe.returncode < 0:
        printed += f"\nthe import died with {signal.Signals(-probe.returncode).name}"
    name, _, text = printed.rpartition(MARK)[2].partition("\n")
    return {name: text[-ERROR_CHARS:].strip() or f"the import ended with status {probe.returncode}"}
