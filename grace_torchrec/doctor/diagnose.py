"""Judge an installation: a pure function of the facts, one small rule for each way to break it.

Flow: facts.collect -> *diagnose* -> Diagnosis -> cli/doctor.
"""

from collections.abc import Callable, Iterator

from grace_torchrec.doctor.facts import FBGEMM_WHEELS, InstallFacts
from grace_torchrec.doctor.findings import Diagnosis, Finding, Level, PackageRow
from grace_torchrec.doctor.import_failures import explain, numpy_range
from grace_torchrec.doctor.known_good import (
    all_lines,
    by_fbgemm,
    by_torch,
    fbgemm_lines,
    is_cpu_wheel,
    minor,
    satisfies,
    target,
    torch_pin,
    torchrec_lines,
)

Findings = Iterator[Finding]
PYTHON = ">=3.10"
NUMBA = ">=0.62"
TORCHMETRICS = "==1.0.3"


def diagnose(facts: InstallFacts) -> Diagnosis:
    """Return the table of packages and everything that is wrong, problems first.

    >>> [finding.code for finding in diagnose(InstallFacts("3.11.7")).findings]
    ['torch_missing', 'fbgemm_missing', 'torchrec_missing', 'numba_missing', 'numba_numpy']
    """
    findings = [finding for rule in _RULES for finding in rule(facts)]
    findings.sort(key=lambda finding: finding.level == "note")  # stable: else in order of the rules
    return Diagnosis(tuple(_package_rows(facts)), tuple(findings))


def _package_rows(facts: InstallFacts) -> Iterator[PackageRow]:
    """What is installed beside what fits it, as pip writes versions."""
    row = target(facts)
    series = {
        ("torch",): f"=={minor(row.torch)}.*",
        FBGEMM_WHEELS: f"=={minor(row.fbgemm)}.*",
        ("torchrec",): f"=={minor(row.torchrec)}.*",
        ("torchmetrics",): _torchmetrics_pin(facts),
        ("triton",): _triton_pin(facts),
        ("numba",): NUMBA,
        ("numpy",): numpy_range(facts).removeprefix("numpy"),
    }
    yield PackageRow("python", facts.python, PYTHON, satisfies(facts.python, PYTHON))
    for names, wanted in series.items():
        found = facts.find(*names)
        fits = found is not None and satisfies(found.version, wanted)
        version = found.version if found else "missing"
        yield PackageRow(found.name if found else names[0], version, wanted, fits)


def _triton_pin(facts: InstallFacts) -> str:
    """The triton that torch itself asks for, else the one its CUDA build is known to ask for."""
    torch = facts.find("torch")
    return (torch and torch.asks_for("triton")) or f"=={target(facts).triton}"


def _torchmetrics_pin(facts: InstallFacts) -> str:
    """The torchmetrics that torchrec itself asks for, else the one its releases are known to ask for."""
    torchrec = facts.find("torchrec")
    return (torchrec and torchrec.asks_for("torchmetrics")) or TORCHMETRICS


def _python(facts: InstallFacts) -> Findings:
    """An interpreter older than the package supports."""
    if not satisfies(facts.python, PYTHON):
        yield Finding(
            "python", "problem", f"python {facts.python} is too old, 3.10 or newer is needed"
        )


def _shadowed(facts: InstallFacts) -> Findings:
    """A file or folder that is imported instead of the package."""
    for name, place in facts.shadows.items():
        text = f"import {name} finds {place}, not the installed package; rename or remove it"
        yield Finding("shadowed", "problem", text)


def _installed_twice(facts: InstallFacts) -> Findings:
    """Two versions of one distribution: an upgrade that stopped half-way, or a second site folder."""
    names = [found.name for found in facts.distributions if found.has_code]
    ranges = {row.package: row.known_good for row in _package_rows(facts)}
    for name in sorted({name for name in names if names.count(name) > 1}):
        versions = [found.version for found in facts.distributions if found.name == name]
        text = f"{name} is installed twice ({' and '.join(versions)}); their files are mixed"
        removal = (f"pip uninstall -y {name}",) * names.count(name)  # one removal takes one of them
        binary = name in {"torch", "torchrec", *FBGEMM_WHEELS}
        lines = all_lines(facts) if binary else (f'pip install "{name}{ranges[name]}"',)
        yield Finding("installed_twice", "problem", text, (*removal, *lines))


def _torch(facts: InstallFacts) -> Findings:
    """No torch."""
    if facts.find("torch") is None:
        text = "torch is not installed; everything but reading traces needs it"
        fbgemm = fbgemm_lines(facts) if _fbgemm_names(facts) else ()
        lines = (f"pip install {torch_pin(facts)}", *fbgemm)
        yield Finding("torch_missing", "problem", text, lines)


def _fbgemm_names(facts: InstallFacts) -> list[str]:
    """Names of the real fbgemm distributions, shims left out."""
    fbgemms = (found for found in facts.distributions if found.name in FBGEMM_WHEELS)
    return sorted({found.name for found in fbgemms if found.has_code})


def _one_fbgemm(facts: InstallFacts) -> Findings:
    """No fbgemm, or several wheels that overwrite each other's files."""
    names = _fbgemm_names(facts)
    if not names:
        torch = facts.find("torch")
        text = "fbgemm_gpu is not installed; torchrec cannot be imported without it"
        lines = fbgemm_lines if torch and by_torch(torch.version) else all_lines
        yield Finding("fbgemm_missing", "problem", text, lines(facts))
    elif len(names) > 1:
        text = f"{' and '.join(names)} are both installed and share the import package fbgemm_gpu"
        yield Finding("two_fbgemm", "problem", text, fbgemm_lines(facts))


def _fbgemm_build(facts: InstallFacts) -> Findings:
    """Builds of fbgemm and torch for different devices."""
    fbgemm = facts.find(*FBGEMM_WHEELS)
    if fbgemm is None or not facts.torch_build or len(_fbgemm_names(facts)) > 1:
        return
    cpu_wheel = is_cpu_wheel(fbgemm.name, fbgemm.version)
    if facts.torch_build == "cpu" and not cpu_wheel:
        text = f"{fbgemm.name} {fbgemm.version} is a CUDA build, torch is a CPU build"
        yield Finding("cuda_fbgemm_on_cpu_torch", "problem", text, fbgemm_lines(facts))
    elif facts.torch_build != "cpu" and cpu_wheel:
        text = f"{fbgemm.name} {fbgemm.version} has no CUDA operators, torch is a {facts.torch_build} build"
        level: Level = "problem" if facts.has_gpu else "note"
        yield Finding("cpu_fbgemm_on_cuda_torch", level, text, fbgemm_lines(facts))


def _torch_fbgemm_pair(facts: InstallFacts) -> Findings:
    """The binaries of fbgemm fit one minor release of torch only."""
    torch, fbgemm = facts.find("torch"), facts.find(*FBGEMM_WHEELS)
    if torch is None or fbgemm is None:
        return
    pair = f"torch {torch.version} and {fbgemm.name} {fbgemm.version}"
    if _unknown_pair(facts):
        text = f"{pair}: neither release is known here, nothing to compare them and torchrec with"
        yield Finding("unknown_pair", "note", text)
    elif by_torch(torch.version) != by_fbgemm(fbgemm.version):
        row = target(facts)
        text = (
            f"{pair} do not go together; torch {minor(row.torch)} and fbgemm {minor(row.fbgemm)} do"
        )
        yield Finding("torch_fbgemm_pair", "problem", text, all_lines(facts))


def _unknown_pair(facts: InstallFacts) -> bool:
    """Both torch and fbgemm are installed, and the table knows neither release (nightlies, newer ones)."""
    torch, fbgemm = facts.find("torch"), facts.find(*FBGEMM_WHEELS)
    return bool(torch and fbgemm and not by_torch(torch.version) and not by_fbgemm(fbgemm.version))


def _torchrec(facts: InstallFacts) -> Findings:
    """No torchrec, or one of another minor release than the torch and fbgemm it runs on."""
    torchrec, row = facts.find("torchrec"), target(facts)
    if torchrec is None:
        text = "torchrec is not installed; traces can be analysed, models cannot be accelerated"
        yield Finding("torchrec_missing", "problem", text, torchrec_lines(facts))
    elif minor(torchrec.version) != minor(row.torchrec) and not _unknown_pair(facts):
        text = f"torchrec {torchrec.version} does not go with torch {minor(row.torch)}; torchrec {minor(row.torchrec)} does"
        yield Finding("torchrec_minor", "problem", text, torchrec_lines(facts))


def _torchmetrics(facts: InstallFacts) -> Findings:
    """TorchRec pins torchmetrics exactly; other packages pull it forward."""
    wanted, found = _torchmetrics_pin(facts), facts.find("torchmetrics")
    if facts.find("torchrec") and (found is None or not satisfies(found.version, wanted)):
        have = found.version if found else "none"
        text = f"torchrec asks for torchmetrics{wanted}, found {have}"
        yield Finding("torchmetrics_pin", "problem", text, (f"pip install torchmetrics{wanted}",))


def _numba_numpy(facts: InstallFacts) -> Findings:
    """Missing numba or numpy, or a numpy outside the range that numba imports with."""
    numba, numpy, wanted = facts.find("numba"), facts.find("numpy"), numpy_range(facts)
    if numba is None or not satisfies(numba.version, NUMBA):
        text = f"numba{NUMBA} is needed, found {numba.version if numba else 'none'}"
        yield Finding("numba_missing", "problem", text, (f'pip install "numba{NUMBA}"',))
    if numpy is None or not satisfies(numpy.version, wanted):
        have = f"numpy {numpy.version}" if numpy else "no numpy"
        text = f"numba asks for {wanted}, found {have}"
        yield Finding("numba_numpy", "problem", text, (f'pip install "{wanted}"',))


def _triton(facts: InstallFacts) -> Findings:
    """A triton other than torch's pin: wrong for CUDA, untested where kernels run interpreted."""
    found, wanted = facts.find("triton"), _triton_pin(facts)
    if facts.find("torch") is not None and (found is None or not satisfies(found.version, wanted)):
        have = f"triton {found.version}" if found else "no triton"
        text = f"found {have}, this torch goes with triton{wanted}"
        level: Level = "problem" if facts.torch_build == "cuda" or found is None else "note"
        yield Finding("triton_pin", level, text, (f"pip install triton{wanted}",))


def _plain_path(facts: InstallFacts) -> Findings:
    """A CPU whose kernels are torch's own."""
    if facts.has_avx2 is False:
        text = (
            "this CPU has no AVX2: lookups rewrite bags and leave the sums to torch, "
            "equal and slower; serve on a machine with AVX2"
        )
        yield Finding("plain_path", "note", text)


def _imports(facts: InstallFacts) -> Findings:
    """What the tried imports printed; beside a shadow it is the shadow that failed."""
    if not facts.shadows:
        yield from (explain(module, text, facts) for module, text in facts.import_errors.items())


def _own_and_foreign(facts: InstallFacts) -> Findings:
    """Parts of this distribution that are missing, and other projects' packages of like names."""
    if facts.missing_own:
        text = f"{' and '.join(facts.missing_own)} cannot be imported: grace-torchrec is installed half"
        yield Finding(
            "own_missing", "problem", text, ("pip install --force-reinstall --no-deps .",)
        )
    for name, place in facts.foreign.items():
        text = f"{name} at {place} is another project's package; this project's is grace_{name.removeprefix('triton_')}"
        yield Finding("foreign_package", "note", text)


_RULES: tuple[Callable[[InstallFacts], Findings], ...] = (
    _python,
    _shadowed,
    _torch,
    _installed_twice,
    _one_fbgemm,
    _fbgemm_build,
    _torch_fbgemm_pair,
    _torchrec,
    _torchmetrics,
    _numba_numpy,
    _triton,
    _plain_path,
    _imports,
    _own_and_foreign,
)
