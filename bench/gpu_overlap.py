"""Stages of gpu_check.py about two memories, two streams and recorded launches.

Flow: entrants of gpu_kernels.py -> *tiers*, *overlap*, *graph* -> one line each.
Shapes: B bags of P ids, D dimension, N items, R stored rows.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.gpu_data import make_table
from bench.gpu_kernels import Entrants, best_gather
from bench.gpu_run import Run, Sizes, cuda_only, median_us, pinned
from grace_kernels.device_rows import DeviceRows, RewrittenBags
from grace_kernels.pooling import pool_rows

BATCHES = 8  # rewritten and pooled in a row, inputs rotate
HOST_SHARES = (0.0, 0.01, 0.02, 0.05, 0.20)


def tiers(run: Run) -> None:
    """Read a part of the rows from pinned host memory; compare with the slower memory alone."""
    sizes, dim, pooling = run.sizes, 64, 60
    row_bytes, reads = dim * 4, run.sizes.bags * pooling
    rows = torch.ones(sizes.gather_bytes // row_bytes, dim, device=sizes.device)
    host = pinned(sizes, torch.full((sizes.host_bytes // row_bytes, dim), 2.0))
    table = DeviceRows(rows, dim, 0, rows[:0], host)
    offsets = torch.arange(sizes.bags + 1, device=sizes.device) * pooling
    out = torch.full((sizes.bags, dim), torch.nan, device=sizes.device)
    hbm, link = best_gather(run, "hbm", row_bytes), best_gather(run, "host", row_bytes)
    for share in HOST_SHARES:
        sets = [
            rows_of_both(sizes, len(rows), len(host), share, pooling)
            for _ in range(sizes.input_sets)
        ]
        pool = functools.partial(pool_set, sets, offsets, table, out)
        us = median_us(sizes, {"pool": pool})["pool"]
        pool(0)
        cold = (sets[0].rows_L >= len(rows)).view(sizes.bags, pooling).sum(1)
        right = bool((out == (pooling + cold)[:, None]).all())
        said = {"host_share": share, "ok": right, "us": us}
        if hbm and link:
            slower = max((1 - share) / hbm, share / link) * reads * row_bytes / 1e3
            said |= {"slower_memory_us": slower, "ratio": us / slower}
        run.say("tiers", **said)


def pool_set(
    sets: list[RewrittenBags], offsets: Tensor, table: DeviceRows, out: Tensor, which: int
) -> None:
    """Pool one of several inputs."""
    pool_rows(sets[which], offsets, table, out, mean=False)


def rows_of_both(
    sizes: Sizes, num_hbm: int, num_host: int, share: float, pooling: int
) -> RewrittenBags:
    """Draw bags of rows of which ``share`` lie in host memory."""
    shape, device = (sizes.bags * pooling,), sizes.device
    cold = num_hbm + torch.randint(num_host, shape, device=device)
    there = torch.rand(shape, device=device) < share
    ids = torch.where(there, cold, torch.randint(num_hbm, shape, device=device)).int()
    lengths = torch.full((sizes.bags,), pooling, dtype=torch.int32, device=device)
    return RewrittenBags(ids, lengths, lengths, None)


def overlap(run: Run) -> None:
    """Rewrite batch i + 1 on a second stream while batch i is pooled."""
    if not cuda_only(run, "overlap"):
        return
    for dim in (64, 128):
        entrants = Entrants(run, make_table(run.sizes, dim, torch.float32), 60)
        side = torch.cuda.Stream(priority=-1)
        ways = {
            "serial": functools.partial(in_turn, (entrants.rewrite, entrants.pool)),
            "two_streams": functools.partial(on_two_streams, entrants, side),
            "rewrite": functools.partial(in_turn, (entrants.rewrite,)),
            "pool": functools.partial(in_turn, (entrants.pool,)),
        }
        us = median_us(run.sizes, ways)
        hidden = (us["serial"] - us["two_streams"]) / us["rewrite"]
        times = {f"{name}_us": value for name, value in us.items()}
        run.say("overlap", dim=dim, batches=BATCHES, hidden=hidden, **times)


def in_turn(calls: tuple[Callable[[int], Any], ...], which: int) -> None:
    """Make the calls for every batch, one stream."""
    for batch in range(BATCHES):
        for call in calls:
            call(batch % 4)


def on_two_streams(entrants: Entrants, side: torch.cuda.Stream, which: int) -> None:
    """Rewrite one batch ahead on ``side``; the pooling of batch i + 1 waits for it."""
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    for batch in range(BATCHES):
        with torch.cuda.stream(side):
            entrants.rewrite((batch + 1) % 4)
            ready = side.record_event()
        entrants.pool(batch % 4)
        main.wait_event(ready)


def graph(run: Run) -> None:
    """Replay small batches from a CUDA graph: what is left of launch costs, and is it equal."""
    if not cuda_only(run, "graph"):
        return
    entrants = Entrants(run, make_table(run.sizes, 64, torch.float32), 60, bags=512)
    entrants.fused(0)
    eager_out = entrants.out.clone()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        entrants.fused(0)
    entrants.out.fill_(torch.nan)
    recorded.replay()
    equal = bool(torch.equal(entrants.out, eager_out))
    ways = {
        "eager": entrants.fused,
        "graph": lambda which: recorded.replay(),
        "stock": entrants.stock,
    }
    us = median_us(run.sizes, ways)
    run.say("graph", ok=equal, bags=512, **{f"{name}_us": value for name, value in us.items()})
