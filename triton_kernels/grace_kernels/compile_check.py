"""Compiles every kernel for real GPUs without one, and holds the machine code to its limits.

Flow: tests and ``python -m grace_kernels.compile_check [--json]`` call :func:`check_all`.
Triton compiles a signature for a named target; its own ``cuobjdump`` and ``nvdisasm`` (in the
wheel) say what came out. Limits: no stack and no local memory (a spilled accumulator costs more
than the rows it waits for), rows loaded 16 bytes a lane (quantised rows: whole 4-byte words),
at most 128 registers, and few enough instructions for rewriting to hide behind the rows.

TRITON_INTERPRET replaces the kernels at import, so this needs a process without it.
Shapes: D dimension, W bytes of a row.
"""

# mypy: disable-error-code="import-untyped"

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from grace_kernels.compile_variants import Variant, variants

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CAPABILITIES = (80, 90)
MAX_REGISTERS = 128
ALIGNED = 16  # PyTorch allocates at least so; without it row loads shrink to 4 bytes


@dataclass(frozen=True)
class Report:
    """What the compiler made of one variant on one GPU; no problems means that it passed.

    Attributes:
        kernel: Name.
        capability: 80 or 90.
        variant: Compile-time values and types of the rows.
        warps: Warps of a program.
        registers: A lane.
        stack_bytes: A lane; more than 0 is a spill.
        shared_bytes: A program.
        sass: Instructions.
        memory: How often each kind of memory instruction stands in the code.
        problems: Which limits are broken, in words.
    """

    kernel: str
    capability: int
    variant: str
    warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    sass: int
    memory: dict[str, int]
    problems: tuple[str, ...]


def check_all(
    capabilities: tuple[int, ...] = CAPABILITIES, *, only_usual: bool = False
) -> list[Report]:
    """Compile every variant for every GPU and hold it to its limits.

    Args:
        capabilities: 80 for A100, 90 for H100 and H200.
        only_usual: Leave out the rarer half of the variants.

    Raises:
        RuntimeError: the kernels were imported for the interpreter.
        FileNotFoundError: this Triton wheel holds no disassembler.
    """
    chosen = [variant for variant in variants() if variant.usual or not only_usual]
    return [check(variant, cap) for variant in chosen for cap in capabilities]


def check(variant: Variant, capability: int) -> Report:
    """Compile one variant for one GPU.

    Args:
        variant: A kernel and how it is called.
        capability: Of the GPU: 80, 90.

    Raises:
        RuntimeError: the kernels were imported for the interpreter.
        FileNotFoundError: this Triton wheel holds no disassembler.
    """
    if not hasattr(variant.kernel, "arg_names") or "Interpreted" in type(variant.kernel).__name__:
        raise RuntimeError("TRITON_INTERPRET was set when the kernels were imported; unset it")
    compiled = _compile(variant, capability)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        sass = _tool("nvdisasm", "-c", str(cubin))
    found = {key: int(re.findall(rf"{key}:(\d+)", usage)[-1]) for key in ("REG", "STACK")}
    memory = _memory_instructions(sass)
    instructions = len(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/", sass, re.M))
    return Report(
        kernel=variant.kernel.fn.__name__,
        capability=capability,
        variant=_describe(variant),
        warps=variant.warps,
        registers=found["REG"],
        stack_bytes=found["STACK"],
        shared_bytes=int(compiled.metadata.shared),
        sass=instructions,
        memory=memory,
        problems=tuple(_problems(variant, found["REG"], found["STACK"], memory, instructions)),
    )


def _compile(variant: Variant, capability: int) -> Any:
    """Run Triton's compiler as a launch would, for another machine."""
    kernel = variant.kernel
    names = kernel.arg_names
    constants = variant.constants | {n: None for n, kind in variant.types.items() if kind is None}
    signature = {n: "constexpr" if n in constants else variant.types[n] for n in names}
    pointers = [n for n in names if str(signature[n]).startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", ALIGNED]] for n in pointers},
    )
    return triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": variant.warps}
    )


def _problems(
    variant: Variant, registers: int, stack: int, memory: dict[str, int], sass: int
) -> Iterator[str]:
    """Yield every limit that is broken."""
    spills = memory.get("LDL", 0) + memory.get("STL", 0)
    if stack or spills:
        yield f"spills: {stack} B of stack, {spills} local loads and stores"
    if registers > MAX_REGISTERS:
        yield f"{registers} registers, limit {MAX_REGISTERS}"
    wide, bytes_ = memory.get("LDG.128", 0), memory.get("LDG.U8", 0) + memory.get("LDG.S8", 0)
    if wide < variant.wide_loads:
        yield f"{wide} loads of 16 bytes, the rows need {variant.wide_loads}"
    if bytes_:
        yield f"{bytes_} loads of single bytes"
    if variant.max_sass is not None and sass > variant.max_sass:
        yield f"{sass} instructions, limit {variant.max_sass}"


def _memory_instructions(sass: str) -> dict[str, int]:
    """Count loads and stores by space (G global, L local, S shared) and width in bits."""
    counts: Counter[str] = Counter()
    for name, modifiers in re.findall(r"\b(LDG|STG|LDL|STL|LDS|STS|ATOMG|RED)\b((?:\.\w+)*)", sass):
        width = re.search(r"\.(128|64|U16|S16|U8|S8)\b", modifiers)
        local = name in ("LDL", "STL")
        counts[name if local else f"{name}.{width[1] if width else '32'}"] += 1
    return dict(counts)


def _tool(name: str, *arguments: str) -> str:
    """Run one of the binaries of the Triton wheel."""
    path = TOOLS / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: this Triton wheel cannot be inspected")
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _describe(variant: Variant) -> str:
    """Name what differs between variants of a kernel."""
    rows = variant.types.get("rows_ptr")
    parts = [f"rows={rows[1:]}"] if rows else []
    parts += [f"{name.lower()}={int(value)}" for name, value in variant.constants.items()]
    return " ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Print every report; 0 if all limits hold, 1 if one is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--capability", type=int, action="append", help="80 or 90; both if absent")
    parser.add_argument("--usual", action="store_true", help="only the usual variants")
    options = parser.parse_args(arguments)
    capabilities = tuple(options.capability or CAPABILITIES)
    reports = check_all(capabilities, only_usual=options.usual)
    if options.json:
        answer = {"triton": triton.__version__, "reports": [asdict(report) for report in reports]}
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        for report in reports:
            sys.stdout.write(_line(report) + "\n")
    return int(any(report.problems for report in reports))


def _line(report: Report) -> str:
    """Return one line a variant."""
    memory = " ".join(f"{name}:{count}" for name, count in sorted(report.memory.items()))
    verdict = "ok" if not report.problems else "; ".join(report.problems)
    return (
        f"sm_{report.capability} {report.kernel} {report.variant} warps={report.warps}: "
        f"{report.registers} registers, {report.sass} instructions, "
        f"{report.shared_bytes} B shared, {memory}: {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
