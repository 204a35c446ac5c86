"""Say from the text of a failed import what is broken.

Flow: InstallFacts.import_errors -> *explain* -> Finding.
Source: the error texts that users of torchrec and fbgemm report most (undefined symbols, missing
shared objects, CUDA libraries on a machine without them), and those of numpy and numba.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from grace_torchrec.doctor.facts import FBGEMM_WHEELS, InstallFacts
from grace_torchrec.doctor.findings import Finding
from grace_torchrec.doctor.known_good import all_lines, fbgemm_lines, torch_pin, torchrec_lines

NUMPY = ">=1.26"  # where numba is missing: what this package asks for
SHOWN_CHARS = 120  # a mangled C++ name can fill a screen
Lines = tuple[str, ...]
Fix = Callable[
    [InstallFacts, str, str], Lines
]  # facts, the failing module, what the pattern caught


@dataclass(frozen=True)
class _Cause:
    """A pattern in the text, what it means (``{0}`` is what the pattern caught), and the way out."""

    code: str
    pattern: str
    meaning: str
    fix: Fix


def explain(module: str, text: str, facts: InstallFacts) -> Finding:
    """Classify what the failing ``import module`` printed; an unknown text is quoted.

    >>> explain("fbgemm_gpu", "fbgemm_gpu_py.so: undefined symbol: _ZN3c10", InstallFacts("3.11")).code
    'undefined_symbol'
    """
    for cause in _CAUSES:
        caught = re.search(cause.pattern, text)
        if caught:
            what = caught.group(1)
            meaning = cause.meaning.format(what[:SHOWN_CHARS])
            fix = cause.fix(facts, module, what)
            return Finding(cause.code, "problem", f"import {module}: {meaning}", fix)
    last = text.splitlines()[-1][:SHOWN_CHARS] if text else "failed without a message"
    fix = _again(facts, module, "")
    return Finding("import_failed", "problem", f"import {module}: {last}", fix)


def numpy_range(facts: InstallFacts) -> str:
    """The numpy that the installed numba asks for, as pip writes it (``numpy<2.6,>=1.22``)."""
    numba = facts.find("numba")
    return "numpy" + ((numba and numba.asks_for("numpy")) or NUMPY)


def _everything(facts: InstallFacts, module: str, caught: str) -> Lines:
    """Install the whole set: nothing less brings binaries that were built together."""
    return all_lines(facts)


def _again(facts: InstallFacts, module: str, caught: str) -> Lines:
    """Install the same release of the failing package again, files included."""
    found = facts.find(*(FBGEMM_WHEELS if module == "fbgemm_gpu" else (module,)))
    if found is None:
        return all_lines(facts)
    release = found.version.partition("+")[0]
    return (f"pip install --force-reinstall --no-deps {found.name}=={release}",)


def _cuda_library(facts: InstallFacts, module: str, caught: str) -> Lines:
    """Beside a CPU build the wheel is the wrong one; beside a CUDA build torch's libraries are gone."""
    if facts.torch_build == "cpu":
        return fbgemm_lines(facts)
    return (f"pip install --force-reinstall {torch_pin(facts)}", *fbgemm_lines(facts))


def _dependency(facts: InstallFacts, module: str, caught: str) -> Lines:
    """Install the missing module, together with its family where releases must match."""
    if caught == "torch":
        return all_lines(facts)
    if caught == "fbgemm_gpu":
        return fbgemm_lines(facts)
    if module == "torchrec":
        return torchrec_lines(facts)
    return (f"pip install {caught.replace('_', '-')}",)


def _numpy(facts: InstallFacts, module: str, caught: str) -> Lines:
    """Install a numpy that numba allows."""
    return (f'pip install --upgrade "{numpy_range(facts)}"',)


def _nothing(facts: InstallFacts, module: str, caught: str) -> Lines:
    """No pip line mends it."""
    return ()


_CUDA = r"c10_cuda|torch_cuda|cuda\b|cudart|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvidia-ml"
_CAUSES = (
    _Cause(
        "undefined_symbol",
        r"undefined symbol: (\S+)",
        "its library was built against another torch (undefined symbol {0})",
        _everything,
    ),
    _Cause(
        "cuda_library",
        rf"\b(lib(?:{_CUDA})[\w.-]*): cannot open shared object",
        "its library wants CUDA's {0}, which is not here",
        _cuda_library,
    ),
    _Cause(
        "system_library",
        r"version [`'](GLIBC(?:XX)?_[\d.]+)' not found",
        "the system's C or C++ library is older than {0}; use a newer system image, pip cannot help",
        _nothing,
    ),
    _Cause(
        "missing_library",
        r"\b(\w+\.so[\w.]*)(?:: cannot open shared object| not found|'!)",
        "the file {0} is not where it belongs; the wheel is installed half",
        _again,
    ),
    _Cause(
        "missing_library",
        r"('fbgemm' object has no attribute '\w+'|Could not load this library: \S+)",
        "its operators did not load ({0})",
        _again,
    ),
    _Cause(
        "numpy_abi",
        r"(compiled using NumPy 1\.x|numpy\.core\.multiarray failed|_ARRAY_API not found|Numba needs NumPy [^\n]+)",
        "it does not fit this numpy ({0})",
        _numpy,
    ),
    _Cause("missing_module", r"No module named '(\w+)", "the module {0} is missing", _dependency),
    _Cause(
        "crash",
        r"the import died with (SIG\w+)",
        "kills the interpreter ({0}); binaries of different builds are mixed",
        _everything,
    ),
)
