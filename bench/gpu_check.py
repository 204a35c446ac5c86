"""One command that checks and times the Triton kernels on a machine with a GPU, torch and triton.

    python3 bench/gpu_check.py --section kernels --budget 420 --out DIR
    TRITON_INTERPRET=1 python3 bench/gpu_check.py --dry-run --out DIR     (tiny sizes, no GPU)

Flow: environment, ceilings, correctness, timings, tiers, overlap, graph; each result is one JSON
line on stdout and in ``DIR/gpu_check.jsonl`` as soon as it is known; a stage that no longer fits
the budget is left out and said; a short table comes last. Exit 1 if a check said no or a stage
broke, 3 if none did but a stage was left out for time. Times are medians of interleaved rounds over rotating inputs; tables are many times the L2.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "triton_kernels")]  # runs without being installed

from bench.gpu_kernels import FORMATS, hostile, kernels  # noqa: E402
from bench.gpu_overlap import graph, overlap, tiers  # noqa: E402
from bench.gpu_run import Run, median_us, pinned, run_stages, started  # noqa: E402

MOST_READS, ROWS_AT_A_TIME = 1 << 22, 16


@triton.jit
def gather_kernel(ids_ptr, table_ptr, out_ptr, D: tl.constexpr, ROWS: tl.constexpr):
    """Program ``p`` reads ``ROWS`` random rows and nothing else that counts: the ceiling."""
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.load(ids_ptr + place).to(tl.int64)
    column = tl.arange(0, D)
    value = tl.load(table_ptr + row[:, None] * D + column[None, :]).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0).to(tl.int64) * D + column, tl.sum(value, 0))


def environment(run: Run) -> None:
    """Say what the figures depend on."""
    gpu = {}
    if run.sizes.device == "cuda":
        found = torch.cuda.get_device_properties(0)
        gpu = {"gpu": found.name, "processors": found.multi_processor_count}
        gpu |= {"l2_bytes": found.L2_cache_size, "cuda": torch.version.cuda}
    run.say("environment", torch=torch.__version__, triton=triton.__version__, **gpu)


def ceilings(run: Run) -> None:
    """Measure what the memories give: copy, host link, random rows of each size."""
    sizes = run.sizes
    host = pinned(sizes, torch.zeros(sizes.host_bytes, dtype=torch.uint8))
    copies(run, host)
    for dim, dtype in FORMATS:
        rows = sizes.gather_bytes // (dim * dtype.itemsize)
        random_rows(run, "hbm", torch.ones(rows, dim, dtype=dtype, device=sizes.device))
        random_rows(run, "host", host.view(dtype).view(-1, dim))


def copies(run: Run, host: Tensor) -> None:
    """Copy inside the device (both directions count) and from the host."""
    source = torch.zeros(run.sizes.gather_bytes // 2, dtype=torch.uint8, device=run.sizes.device)
    target = torch.empty_like(source)
    here = target[: host.numel()]
    entrants = {
        "copy": lambda _: target.copy_(source),
        "dma": lambda _: here.copy_(host, non_blocking=True),
    }
    us = median_us(run.sizes, entrants)
    run.say("ceiling_copy", gb_s=2 * source.numel() / us["copy"] / 1e3)
    run.say("ceiling_dma", gb_s=host.numel() / us["dma"] / 1e3)


def random_rows(run: Run, where: str, table: Tensor) -> None:
    """Read random rows of one memory; host memory is read in place through its address."""
    sizes, dim, row_bytes = run.sizes, table.shape[1], table.shape[1] * table.itemsize
    reads = min(len(table), MOST_READS) // ROWS_AT_A_TIME * ROWS_AT_A_TIME
    shape = (sizes.input_sets, reads)
    ids = torch.randint(len(table), shape, device=sizes.device, dtype=torch.int32)
    out = torch.empty(reads // ROWS_AT_A_TIME, dim, device=sizes.device)

    def gather(which: int, warps: int) -> None:
        gather_kernel[(len(out),)](
            ids[which], table, out, D=dim, ROWS=ROWS_AT_A_TIME, num_warps=warps
        )

    entrants = {warps: functools.partial(gather, warps=warps) for warps in (2, 4)}
    for warps, us in median_us(sizes, entrants).items():
        gb_s = reads * row_bytes / us / 1e3
        run.say("ceiling_gather", where=where, row_bytes=row_bytes, warps=warps, gb_s=gb_s)


def spin_graphs(run: Run) -> None:
    """Measure random graphs beside their simulation; needs numba, so it is imported here."""
    from bench.gpu_schedule import spin_graphs as stage

    stage(run)


def models(run: Run) -> None:
    """Time the four models on one stream, on ours and from a CUDA graph."""
    from bench.gpu_schedule import models as stage

    stage(run)


STAGES: dict[str, tuple[tuple[Callable[[Run], None], float], ...]] = {  # least seconds it needs
    "kernels": (
        (environment, 0),
        (ceilings, 30),
        (hostile, 20),
        (kernels, 60),
        (tiers, 20),
        (overlap, 20),
        (graph, 10),
    ),
    "schedule": ((environment, 0), (spin_graphs, 60), (models, 60)),
}


def show(run: Run) -> None:
    """Print the timings as a short table."""
    columns = (
        "dim",
        "dtype",
        "pooling",
        "saved",
        "embedding_bag_us",
        "pool_plain_us",
        "rewrite_us",
    )
    columns += ("pool_us", "fused_us", "ahead_ratio", "fused_ratio", "of_ceiling")
    print(" ".join(f"{name[:13]:>13}" for name in columns))
    for line in run.lines:
        if line["stage"] == "time":
            print(" ".join(f"{line[name]!s:>13}" for name in columns))


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--section", choices=sorted(STAGES), default="kernels")
    parser.add_argument("--budget", type=float, default=420, help="seconds")
    parser.add_argument("-o", "--out", type=Path, help="folder of results; default: gpu_check")
    parser.add_argument("--dry-run", action="store_true", help="tiny, in Triton's interpreter")
    options = parser.parse_args(arguments)
    run = started(parser, options, "gpu_check")
    code = run_stages(run, STAGES[options.section])
    show(run)
    return code


if __name__ == "__main__":
    sys.exit(main())
