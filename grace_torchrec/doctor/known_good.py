"""Releases that belong together, and the pip lines that install them.

Source: fbgemm_gpu's own table of torch releases (1.6 to 1.9); torchrec's minor number equals
fbgemm's; triton is what the CUDA build of torch pins; the torchmetrics pin is in torchrec's metadata.
This project's tests run ``TESTED``; the other rows are what their makers say.
"""

import re
from dataclasses import dataclass

from grace_torchrec.doctor.facts import FBGEMM_WHEELS, InstallFacts

TORCHREC_NEEDS = "tensordict torchmetrics==1.0.3 tqdm pyre-extensions"


@dataclass(frozen=True)
class KnownGood:
    """One set of releases; ``torchrec_needs`` is what torchrec requires beside torch and fbgemm."""

    torch: str
    fbgemm: str
    torchrec: str
    triton: str
    torchrec_needs: str = TORCHREC_NEEDS


KNOWN_GOOD = (
    KnownGood("2.11.0", "1.6.0", "1.6.1", "3.6.0", f"{TORCHREC_NEEDS} iopath"),
    KnownGood("2.12.0", "1.7.0", "1.7.0", "3.7.0", f"{TORCHREC_NEEDS} iopath"),
    KnownGood("2.13.0", "1.8.0", "1.8.0", "3.7.1"),
    KnownGood("2.14.0", "1.9.0", "1.9.2", "3.8.0"),
)
TESTED = KNOWN_GOOD[2]


def by_torch(version: str) -> KnownGood | None:
    """The row of a torch release."""
    return next((row for row in KNOWN_GOOD if minor(row.torch) == minor(version)), None)


def by_fbgemm(version: str) -> KnownGood | None:
    """The row of an fbgemm release."""
    return next((row for row in KNOWN_GOOD if minor(row.fbgemm) == minor(version)), None)


def target(facts: InstallFacts) -> KnownGood:
    """The row to repair towards: torch's, since it is the largest to replace; else fbgemm's, else TESTED."""
    torch, fbgemm = facts.find("torch"), facts.find(*FBGEMM_WHEELS)
    of_torch = by_torch(torch.version) if torch else None
    of_fbgemm = by_fbgemm(fbgemm.version) if fbgemm else None
    return of_torch or of_fbgemm or TESTED


def wants_cuda(facts: InstallFacts) -> bool:
    """Whether the repaired installation is the one for a GPU: what torch is, else what the machine has."""
    return facts.torch_build != "cpu" if facts.torch_build else facts.has_gpu


def is_cpu_wheel(name: str, version: str) -> bool:
    """Whether an fbgemm distribution is the build without CUDA."""
    return name.endswith("-cpu") or "cpu" in version.partition("+")[2]


def torch_pin(facts: InstallFacts) -> str:
    """``torch==X`` of the target row; an installed patch release of that row stays, and so does ``+cpu``."""
    row, torch = target(facts), facts.find("torch")
    if torch is None:
        return f"torch=={row.torch}"
    release, _, local = torch.version.partition("+")
    wanted = release if minor(release) == minor(row.torch) else row.torch
    return f"torch=={wanted}{'+cpu' if local == 'cpu' else ''}"


def fbgemm_lines(facts: InstallFacts) -> tuple[str, ...]:
    """Lines that leave exactly one fbgemm: the target's, for this build of torch."""
    return (*_removal(facts), f"pip install {_fbgemm_pin(facts)}")


def torchrec_lines(facts: InstallFacts) -> tuple[str, ...]:
    """Lines that install the target's torchrec without letting it choose another torch or fbgemm."""
    row = target(facts)
    if wants_cuda(facts):
        return (f"pip install {torch_pin(facts)} {_fbgemm_pin(facts)} torchrec=={row.torchrec}",)
    return (f"pip install --no-deps torchrec=={row.torchrec}", f"pip install {row.torchrec_needs}")


def all_lines(facts: InstallFacts) -> tuple[str, ...]:
    """Lines that install the whole target set; over itself where these releases stand there already."""
    torch, fbgemm = facts.find("torch"), facts.find(*FBGEMM_WHEELS)
    if torch and fbgemm and by_torch(torch.version) == by_fbgemm(fbgemm.version) == target(facts):
        pins = f"{torch_pin(facts)} {_fbgemm_pin(facts)} torchrec=={target(facts).torchrec}"
        return (*_removal(facts), f"pip install --force-reinstall --no-deps {pins}")
    if wants_cuda(facts):
        return (*_removal(facts), *torchrec_lines(facts))
    return (f"pip install {torch_pin(facts)}", *fbgemm_lines(facts), *torchrec_lines(facts))


def _fbgemm_pin(facts: InstallFacts) -> str:
    """The fbgemm of the target row, in the wheel for this build of torch."""
    return f"fbgemm-gpu{'' if wants_cuda(facts) else '-cpu'}=={target(facts).fbgemm}"


def _removal(facts: InstallFacts) -> tuple[str, ...]:
    """One line that removes every fbgemm if one of them must go: their files overlap.

    A name-only shim goes where the real fbgemm-gpu is wanted: pip would take it for installed.
    """
    cuda = wants_cuda(facts)
    fbgemms = [found for found in facts.distributions if found.name in FBGEMM_WHEELS]
    present = [found for found in fbgemms if found.has_code or cuda]
    wrong = [found for found in present if is_cpu_wheel(found.name, found.version) == cuda]
    if not wrong and len(present) < 2:
        return ()
    return (f"pip uninstall -y {' '.join(dict.fromkeys(found.name for found in present))}",)


def minor(version: str) -> str:
    """First two numbers of a version.

    >>> minor("2.13.0+cpu")
    '2.13'
    """
    return ".".join(re.findall(r"\d+", version)[:2])


def satisfies(version: str, wanted: str) -> bool:
    """Whether a release meets ``name<2.6,>=1.22``; numbers are compared, suffixes (rc, dev) are not.

    >>> satisfies("2.4.6", "numpy<2.6,>=1.22"), satisfies("1.4.0", "torchmetrics==1.0.3")
    (True, False)
    """
    have = _numbers(version)
    for operator, text in re.findall(r"(==|!=|<=|>=|~=|<|>)\s*([\w.*]+)", wanted):
        want = _numbers(text)
        length = len(want) if text.endswith(".*") else max(len(have), len(want))
        left, right = (_padded(numbers, length) for numbers in (have, want))
        holds = {
            "==": left == right,
            "!=": left != right,
            "<=": left <= right,
            ">=": left >= right,
            "<": left < right,
            ">": left > right,
            "~=": left >= right and have[: len(want) - 1] == want[:-1],
        }
        if not holds[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Release numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    """``numbers`` cut or filled with zeros to ``length``."""
    return (numbers + (0,) * length)[:length]
