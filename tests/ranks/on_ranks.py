"""Runs cases of cases.py on several gloo ranks, and writes what each rank found as JSON.

    python on_ranks.py WORLD_SIZE FOLDER CASE [CASE ..]

Everything is imported once, then the ranks are forked: no port is taken (they meet in a file), and
a rank that fails or hangs ends all of them.  ``FOLDER/rank<r>.json`` holds case -> result; the case
that failed has the traceback under "error", and those behind it are missing.
"""

import datetime
import json
import logging
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import cases
import swapped_models
import torch
import torch.distributed as dist

from grace_torchrec.modules.rewrite_ahead import rewrite

TIMEOUT_S = 900


def run(rank: int, world_size: int, folder: Path, names: list[str]) -> None:
    """Run the cases on one rank."""
    results = {}
    for name, value in (
        ("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world_size),
        ("LOCAL_WORLD_SIZE", world_size),
    ):  # fmt: skip
        os.environ[name] = str(value)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting-point'}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=600),
    )
    failed = False
    for name in names:
        try:
            results[name] = getattr(cases, name)(rank, world_size, folder)
            dist.barrier()
        except BaseException:
            results[name] = {"error": traceback.format_exc()}
            failed = True
        (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")
        if failed:
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def compile_kernels() -> None:
    """Compile what the cases will need, or read it from the cache: once, not on every rank."""
    for lookup in ("fused", "ahead"):
        for weighted in (False, True):
            model = swapped_models.swapped_model(lookup=lookup, weighted=weighted)
            bags = swapped_models.batch(0, weighted=weighted)
            (ready,) = rewrite([bags], model, prefetch=0)
            with torch.no_grad():
                model(bags)
                model(ready)
    cases.in_line(model.ebc, bags)


def main() -> int:
    """Fork the ranks and wait for them."""
    world_size, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    compile_kernels()
    children = []
    for rank in range(world_size):
        child = os.fork()
        if not child:
            run(rank, world_size, folder, names)
        children.append(child)
    end = time.monotonic() + TIMEOUT_S
    failed = False
    left = set(children)
    while left and not failed and time.monotonic() < end:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            left.discard(done)
            failed = status != 0
        else:
            time.sleep(0.02)
    for child in left:  # the others would wait for the one that failed
        os.kill(child, 9)
        os.waitpid(child, 0)
    return int(failed or bool(left))


if __name__ == "__main__":
    sys.exit(main())
