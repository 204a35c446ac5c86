"""Every known way to break an installation is told apart, and the printed lines mend it."""

import re
from dataclasses import replace
from itertools import product

import pytest

from grace_torchrec.doctor.diagnose import diagnose
from grace_torchrec.doctor.facts import Distribution, InstallFacts
from grace_torchrec.doctor.known_good import KNOWN_GOOD, TESTED, KnownGood

NUMPY_RANGE = "numpy<2.6,>=1.22"
NO_LINE = {"python", "shadowed", "system_library"}  # problems that no pip line can mend


def cpu(row: KnownGood = TESTED, **changed: str | None) -> InstallFacts:
    """A healthy CPU installation of one row; ``name=version`` changes one package, None removes it."""
    versions = {
        "torch": f"{row.torch}+cpu",
        "fbgemm-gpu-cpu": row.fbgemm,
        "torchrec": row.torchrec,
        "torchmetrics": "1.0.3",
        "triton": row.triton,
        "numba": "0.68.1",
        "numpy": "2.4.6",
    } | {name.replace("_", "-"): version for name, version in changed.items()}
    return InstallFacts(
        "3.11.7",
        tuple(dist(name, version) for name, version in versions.items() if version),
        torch_build="cpu",
    )


def cuda(row: KnownGood = TESTED, **changed: str | None) -> InstallFacts:
    """The same for CUDA: torch without a local part, fbgemm in its CUDA wheel."""
    wheels = {"torch": row.torch, "fbgemm_gpu_cpu": None, "fbgemm_gpu": row.fbgemm}
    return replace(cpu(row, **(wheels | changed)), torch_build="cuda", has_gpu=True)


def dist(name: str, version: str) -> Distribution:
    """A distribution with the requirements that its real metadata states."""
    requires = {"torchrec": ("fbgemm-gpu", "torchmetrics==1.0.3"), "numba": (NUMPY_RANGE,)}
    return Distribution(name, version, requires.get(name, ()), "shim" not in version)


def with_twin(facts: InstallFacts, name: str, version: str) -> InstallFacts:
    """``facts`` with one more distribution."""
    return replace(facts, distributions=(*facts.distributions, dist(name, version)))


def failing(module: str, text: str, facts: InstallFacts | None = None) -> InstallFacts:
    """``facts`` (a healthy CPU set) where one import fails."""
    return replace(facts or cpu(), import_errors={module: text})


BROKEN = {
    "torch-older-than-fbgemm": (cpu(torch="2.12.0+cpu"), ["torch_fbgemm_pair", "torchrec_minor"]),
    "fbgemm-newer-than-torch": (cpu(fbgemm_gpu_cpu="1.9.0"), ["torch_fbgemm_pair"]),
    "fbgemm-unknown": (cpu(fbgemm_gpu_cpu="2026.8.31"), ["torch_fbgemm_pair"]),
    "torch-unknown": (cpu(torch="2.15.0"), ["torch_fbgemm_pair"]),
    "what-pip-resolves-unpinned": (
        cuda(torch="2.14.1", fbgemm_gpu="1.9.0", torchrec="1.8.0", triton="3.8.0"),
        ["torchrec_minor"],
    ),
    "two-fbgemm-wheels-cpu": (
        with_twin(cpu(), "fbgemm-gpu", "1.8.0"),
        ["two_fbgemm"],
    ),
    "two-fbgemm-wheels-cuda": (with_twin(cuda(), "fbgemm-gpu-cpu", "1.8.0"), ["two_fbgemm"]),
    "cuda-fbgemm-on-cpu-torch": (
        cpu(fbgemm_gpu_cpu=None, fbgemm_gpu="1.8.0"),
        ["cuda_fbgemm_on_cpu_torch"],
    ),
    "cpu-fbgemm-on-a-gpu": (
        cuda(fbgemm_gpu=None, fbgemm_gpu_cpu="1.8.0"),
        ["cpu_fbgemm_on_cuda_torch"],
    ),
    "shim-left-on-a-gpu": (cuda(fbgemm_gpu="1.8.0+cpu.shim"), ["fbgemm_missing"]),
    "no-torch": (replace(cpu(torch=None), torch_build=""), ["torch_missing"]),
    "no-torch-on-a-gpu": (
        replace(cuda(torch=None, fbgemm_gpu=None), torch_build=""),
        ["torch_missing", "fbgemm_missing"],
    ),
    "no-torch-and-the-wrong-fbgemm": (
        replace(cuda(torch=None, fbgemm_gpu=None, fbgemm_gpu_cpu="1.8.0"), torch_build=""),
        ["torch_missing"],
    ),
    "no-fbgemm": (cpu(fbgemm_gpu_cpu=None), ["fbgemm_missing"]),
    "no-torchrec": (cpu(torchrec=None), ["torchrec_missing"]),
    "torchrec-of-another-minor": (cpu(torchrec="1.6.1"), ["torchrec_minor"]),
    "torchmetrics-pulled-forward": (cpu(torchmetrics="1.4.0"), ["torchmetrics_pin"]),
    "no-torchmetrics": (cpu(torchmetrics=None), ["torchmetrics_pin"]),
    "numpy-beyond-numba": (cpu(numpy="2.6.0"), ["numba_numpy"]),
    "no-numba": (cpu(numba=None), ["numba_missing"]),
    "triton-not-torchs-pin": (cuda(triton="3.9.0"), ["triton_pin"]),
    "no-triton": (cpu(triton=None), ["triton_pin"]),
    "torch-installed-twice": (with_twin(cpu(), "torch", "2.12.0"), ["installed_twice"]),
    "numba-installed-twice": (
        with_twin(cpu(numba="0.62.0"), "numba", "0.68.1"),
        ["installed_twice"],
    ),
    "python-too-old": (replace(cpu(), python="3.9.1"), ["python"]),
    "shadowed-by-a-file": (
        replace(
            cpu(),
            shadows={"torch": "/here/torch.py"},
            import_errors={"fbgemm_gpu": "AttributeError: module 'torch' has no attribute 'cuda'"},
        ),
        ["shadowed"],
    ),
    "half-of-this-package": (replace(cpu(), missing_own=("grace_kernels",)), ["own_missing"]),
    "undefined-symbol-though-versions-fit": (
        failing("fbgemm_gpu", "fbgemm_gpu_py.so: undefined symbol: _ZN3c1017RegisterOperators"),
        ["undefined_symbol"],
    ),
    "library-gone": (
        failing("fbgemm_gpu", "fbgemm_gpu_py.so: cannot open shared object file: No such file"),
        ["missing_library"],
    ),
    "system-too-old": (failing("torch", "version `GLIBC_2.28' not found"), ["system_library"]),
}
NOTED = {
    "healthy-cpu": (cpu(), []),
    "healthy-cuda": (cuda(), []),
    "healthy-with-shim": (with_twin(cpu(), "fbgemm-gpu", "1.8.0+cpu.shim"), []),
    "cpu-wheel-under-its-other-name": (cpu(fbgemm_gpu_cpu=None, fbgemm_gpu="1.8.0+cpu"), []),
    "torch-patch-release": (cpu(torch="2.13.1+cpu"), []),
    "triton-under-cpu-torch": (cpu(triton="3.9.0"), ["triton_pin"]),
    "nightlies": (
        cuda(torch="2.16.0.dev20261101", fbgemm_gpu="2026.11.1", torchrec="2026.11.1"),
        ["unknown_pair"],
    ),
    "cuda-torch-on-a-laptop": (
        replace(cuda(fbgemm_gpu=None, fbgemm_gpu_cpu="1.8.0"), has_gpu=False),
        ["cpu_fbgemm_on_cuda_torch"],
    ),
    "foreign-triton-kernels": (
        replace(cpu(), foreign={"triton_kernels": "/site/triton_kernels/__init__.py"}),
        ["foreign_package"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_install_is_named_and_nothing_else(case: str) -> None:
    facts, codes = BROKEN[case]
    diagnosis = diagnose(facts)
    assert [finding.code for finding in diagnosis.findings if finding.level == "problem"] == codes
    assert not diagnosis.healthy


@pytest.mark.parametrize("case", NOTED)
def test_what_works_is_healthy_and_oddities_are_notes(case: str) -> None:
    facts, codes = NOTED[case]
    diagnosis = diagnose(facts)
    assert [finding.code for finding in diagnosis.findings] == codes
    assert diagnosis.healthy


@pytest.mark.parametrize("case", BROKEN)
def test_following_the_printed_lines_heals(case: str) -> None:
    facts, _ = BROKEN[case]
    findings = diagnose(facts).findings
    unmended = {finding.code for finding in findings if not finding.fix}
    assert unmended <= NO_LINE
    for finding in findings:
        for line in finding.fix:
            facts = after(line, facts)
    left = [finding for finding in diagnose(facts).findings if finding.level == "problem"]
    assert {finding.code for finding in left} == unmended


@pytest.mark.parametrize("case", BROKEN | NOTED)
def test_a_row_that_does_not_fit_is_explained(case: str) -> None:
    facts, _ = (BROKEN | NOTED)[case]
    diagnosis = diagnose(facts)
    told = "\n".join(part for found in diagnosis.findings for part in (found.text, *found.fix))
    unfit = [row.package for row in diagnosis.packages if not row.fits]
    assert [name for name in unfit if not re.search(rf"\b{re.escape(name)}\b", told)] == []


@pytest.mark.parametrize("make", [cpu, cuda])
def test_torch_and_fbgemm_fit_on_the_diagonal_only(make) -> None:
    for of_torch, of_fbgemm in product(KNOWN_GOOD, KNOWN_GOOD):
        mixed = KnownGood(of_torch.torch, of_fbgemm.fbgemm, of_torch.torchrec, of_torch.triton)
        assert diagnose(make(mixed)).healthy == (of_torch is of_fbgemm)


@pytest.mark.parametrize(("has_avx2", "notes"), [(None, []), (True, []), (False, ["plain_path"])])
def test_a_cpu_whose_sums_are_left_to_torch_is_noted(has_avx2, notes) -> None:
    diagnosis = diagnose(replace(cpu(), has_avx2=has_avx2))
    assert [finding.code for finding in diagnosis.findings] == notes
    assert diagnosis.healthy


def test_problems_come_before_notes() -> None:
    on_a_laptop = cuda(fbgemm_gpu=None, fbgemm_gpu_cpu="1.8.0", numpy="2.6.0")
    levels = [finding.level for finding in diagnose(replace(on_a_laptop, has_gpu=False)).findings]
    assert levels == ["problem", "note"]


def after(line: str, facts: InstallFacts) -> InstallFacts:
    """What ``line`` makes of an installation: pip's rules, for the packages that matter here.

    Satisfied requirements are left alone unless forced; a removal, also the one before an installation,
    takes one copy of the name, and the files that it shared with another.
    """
    words = line.replace('"', "").split()
    assert words[0] == "pip"
    assert words[1] in {"install", "uninstall"}
    dists = list(facts.distributions)
    if words[1] == "uninstall":
        for name in words[3:]:
            copy = next((found for found in dists if found.name == name), None)
            dists = [found for found in dists if found is not copy]
        left = {found.name: "No module named 'core'" for found in dists if found.name in words[3:]}
        errors = {**facts.import_errors, **left}
        return replace(facts, distributions=tuple(dists), import_errors=errors)
    forced = "--force-reinstall" in words
    if words[-1] == ".":
        return replace(facts, missing_own=())
    repaired = set()
    for wanted in [word for word in words[2:] if not word.startswith("--")]:
        name, version = re.match(r"([\w-]+)(?:==)?([\w.+]*)", wanted).groups()
        version = version or {"numba": "0.68.1", "numpy": "2.4.6"}.get(name, "1.0")
        present = [found for found in dists if found.name == name]
        public = [found.version.partition("+")[0] for found in present]
        if forced or version.partition("+")[0] not in public:
            dists = [found for found in dists if found not in present[:1]] + [dist(name, version)]
            repaired.add(name.removesuffix("-cpu").replace("-", "_"))
    errors = {name: text for name, text in facts.import_errors.items() if name not in repaired}
    build = facts.torch_build or ("cuda" if facts.has_gpu else "cpu")
    return replace(facts, distributions=tuple(dists), import_errors=errors, torch_build=build)
