"""Stages of gpu_check.py for the lookup kernels: right first, then fast, then beside each other.

Flow: gpu_data.py makes tables and bags -> *kernels*, *tiers*, *overlap*, *graph* -> one line each.
Shapes: B bags of P ids, D dimension, N items, R stored rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu_data import TRIPLE_SHARE, Table, make_bags, make_table, subset_code
from bench.gpu_run import Run, median_us
from grace_kernels.clusters import rewrite_clusters
from grace_kernels.device_rows import DeviceRows, RewrittenBags
from grace_kernels.pooling import pool_rows, pooled_lookup
from grace_kernels.reference import DROP, RAISE, pooled_lookup_reference

FORMATS = ((64, torch.float32), (128, torch.float32), (64, torch.float16))
POOLINGS = (30, 60, 145)
ERROR_OF = {torch.float32: 1e-5, torch.float16: 2e-3}  # relative; a stored sum is rounded once


def best_gather(run: Run, where: str, row_bytes: int) -> float:
    """Return the best measured GB/s of random rows."""
    found = [
        line["gb_s"]
        for line in run.lines
        if line["stage"] == "ceiling_gather"
        and line["where"] == where
        and line["row_bytes"] == row_bytes
    ]
    return max(found, default=0.0)


def kernels(run: Run) -> None:
    """Check, then time, every format and pooling factor."""
    for dim, dtype in FORMATS:
        table = make_table(run.sizes, dim, dtype)
        for pooling in POOLINGS:
            if run.left_s() < 60 and run.sizes.device == "cuda":
                run.say("left_out", what=f"kernels dim {dim} {dtype} pooling {pooling}")
                continue
            entrants = Entrants(run, table, pooling)
            entrants.check()
            entrants.time()


class Entrants:
    """Inputs of one format and pooling factor, and every way to answer them."""

    def __init__(self, run: Run, table: Table, pooling: int, bags: int | None = None) -> None:
        self.run, self.table, self.pooling = run, table, pooling
        sizes = run.sizes if bags is None else replace(run.sizes, bags=bags)
        self.sets = [
            make_bags(sizes, table, pooling, seed).flatten() for seed in range(sizes.input_sets)
        ]
        self.offsets = torch.arange(sizes.bags + 1, device=sizes.device) * pooling
        self.stock_offsets = self.offsets.int()
        self.full = torch.full((sizes.bags,), pooling, dtype=torch.int32, device=sizes.device)
        self.bad = torch.zeros(1, dtype=torch.int32, device=sizes.device)
        self.stored = table.device_rows()
        self.plain = DeviceRows(table.rows_ND, table.rows_ND.shape[1])
        self.out = torch.full((sizes.bags, self.stored.dim), torch.nan, device=sizes.device)
        self.subset_code_N, self.subsets = subset_code(table)
        self.rewritten = [self.rewrite(i) for i in range(sizes.input_sets)]

    def rewrite(self, which: int) -> RewrittenBags:
        """Ids to rows, in line."""
        return rewrite_clusters(
            self.sets[which], self.offsets, None, self.table.code_N, num_rows=len(self.table.rows_ND),
            num_sums=len(self.table.sums_RD), policy=RAISE, bad_ids=self.bad, piece=self.piece(),
        )  # fmt: skip

    def rewrite_subsets(self, which: int) -> RewrittenBags:
        """The same rows, found through a subset code."""
        return rewrite_clusters(
            self.sets[which], self.offsets, None, self.subset_code_N,
            num_rows=len(self.table.rows_ND), num_sums=len(self.table.sums_RD), policy=RAISE,
            bad_ids=self.bad, piece=self.piece(), subsets=self.subsets,
        )  # fmt: skip

    def piece(self) -> int:
        """A piece that holds the whole bag."""
        return max(32, 1 << (self.pooling - 1).bit_length())

    def pool(self, which: int) -> None:
        """Rows of bags rewritten ahead."""
        pool_rows(self.rewritten[which], self.offsets, self.stored, self.out, mean=False)

    def pool_plain(self, which: int) -> None:
        """Our gather without sums: what the sums have to beat."""
        bags = RewrittenBags(self.sets[which], self.full, self.full, None)
        pool_rows(bags, self.offsets, self.plain, self.out, mean=False)

    def fused(self, which: int) -> None:
        """Rewriting and pooling in one launch."""
        pooled_lookup(
            self.sets[which], self.offsets, None, self.table.code_N, self.stored, self.out,
            num_sums=len(self.table.sums_RD), mean=False, policy=RAISE, bad_ids=self.bad,
            piece=self.piece(),
        )  # fmt: skip

    def fused_subsets(self, which: int) -> None:
        """The same with a subset code."""
        pooled_lookup(
            self.sets[which], self.offsets, None, self.subset_code_N, self.stored, self.out,
            num_sums=len(self.table.sums_RD), mean=False, policy=RAISE, bad_ids=self.bad,
            piece=self.piece(), subsets=self.subsets,
        )  # fmt: skip

    def stock(self, which: int) -> Tensor:
        """What torch has."""
        return torch.nn.functional.embedding_bag(
            self.sets[which],
            self.table.rows_ND,
            self.stock_offsets,
            mode="sum",
            include_last_offset=True,
        )

    def relative_error(self, entrant: Callable[[int], Any]) -> float:
        """Error of an entrant against float64, from a poisoned output; infinite if one is left."""
        self.out.fill_(torch.nan)
        entrant(0)
        if self.out.isnan().any():
            return float("inf")
        bags = self.run.sizes.checked_bags
        ids = self.sets[0][: bags * self.pooling].long()
        want = self.table.rows_ND[ids].double().view(bags, self.pooling, -1).sum(1)
        return float((self.out[:bags].double() - want).norm() / want.norm())

    def what(self) -> dict[str, Any]:
        """Name the format and the pooling factor."""
        dtype = str(self.table.rows_ND.dtype).removeprefix("torch.")
        return {"dim": self.stored.dim, "dtype": dtype, "pooling": self.pooling}

    def check(self) -> None:
        """Say errors, and whether exactly the rows that should merge did."""
        entrants = {"pool": self.pool, "pool_plain": self.pool_plain, "fused": self.fused}
        entrants |= {"fused_subsets": self.fused_subsets}
        errors = {name: self.relative_error(entrant) for name, entrant in entrants.items()}
        wanted = self.pooling - 2 * int(self.pooling * TRIPLE_SHARE / 3)
        lengths = (self.rewritten[0].lengths_B, self.rewrite_subsets(0).lengths_B)
        exact = all(bool((found == wanted).all()) for found in lengths) and int(self.bad) == 0
        right = exact and max(errors.values()) < ERROR_OF[self.table.rows_ND.dtype]
        self.run.say("correct", ok=right, rows_as_predicted=exact, **self.what(), **errors)

    def time(self) -> None:
        """Say the times, and what each way gains over our own gather of plain rows."""
        entrants = {"embedding_bag": self.stock, "pool_plain": self.pool_plain}
        entrants |= {"rewrite": self.rewrite, "pool": self.pool, "fused": self.fused}
        entrants |= {"rewrite_subsets": self.rewrite_subsets, "fused_subsets": self.fused_subsets}
        us = median_us(self.run.sizes, entrants)
        num_rows = float(self.rewritten[0].lengths_B.sum())
        row_bytes = self.stored.dim * self.table.rows_ND.itemsize
        best, gb_s = (
            best_gather(self.run, "hbm", row_bytes),
            num_rows * row_bytes / us["pool"] / 1e3,
        )
        plain = us["pool_plain"]
        self.run.say(
            "time", **self.what(), saved=1 - num_rows / self.sets[0].numel(),
            **{f"{name}_us": value for name, value in us.items()},
            ahead_ratio=plain / us["pool"], fused_ratio=plain / us["fused"],
            in_line_ratio=plain / (us["rewrite"] + us["pool"]),
            stock_ratio=us["embedding_bag"] / us["fused"], rewrite_share=us["rewrite"] / plain,
            pool_gb_s=gb_s, of_ceiling=gb_s / best if best else None,
        )  # fmt: skip


def hostile(run: Run) -> None:
    """Bags with bad ids, padding, repeats and weights against the reference; quantised rows."""
    sizes, generator = run.sizes, torch.Generator().manual_seed(1)
    table = make_table(sizes, 64, torch.float32)
    num_rows, lengths = len(table.rows_ND), torch.randint(0, 70, (sizes.checked_bags // 8 + 2,))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    ids = torch.randint(-1, num_rows + 2, (total,), generator=generator)
    clustered = table.members_C8[:4, :3].flatten().cpu()
    ids[::2] = clustered[torch.randint(len(clustered), ids[::2].shape, generator=generator)]
    weights = torch.randint(1, 3, (total,), generator=generator) / 2
    for name, given, mean in (("plain", None, False), ("weighted", weights, True)):
        bad = torch.zeros(1, dtype=torch.int32, device=sizes.device)
        out = torch.full((len(lengths), 64), torch.nan, device=sizes.device)
        on_device = [None if t is None else t.to(sizes.device) for t in (ids, offsets, given)]
        pooled_lookup(
            *on_device, table.code_N, table.device_rows(), out, num_sums=len(table.sums_RD),
            mean=mean, policy=RAISE, bad_ids=bad,
        )  # fmt: skip
        want, _ = pooled_lookup_reference(
            ids, offsets, given, table.rows_ND.cpu(), table.sums_RD.cpu(), table.code_N.cpu(),
            mean=mean, policy=DROP,
        )  # fmt: skip
        error = float((out.cpu() - want).norm() / want.norm())
        counted = int(bad) == int(((ids < -1) | (ids >= num_rows)).sum())
        run.say("hostile", what=name, ok=error < 1e-5 and counted, error=error)
    for bits in (8, 4):
        run.say("quantised", bits=bits, **quantised(run, bits))


def quantised(run: Run, bits: int) -> dict[str, Any]:
    """Pool random quantised rows; compare with the same rows as floats."""
    sizes, dim, num_rows = run.sizes, 64, 1000
    head = torch.rand(num_rows, 2).half()
    packed = torch.randint(256, (num_rows, dim * bits // 8), dtype=torch.uint8)
    values = packed if bits == 8 else torch.stack([packed & 15, packed >> 4], 2).flatten(1)
    rows = torch.cat([head.view(torch.uint8), packed], 1)
    ids = torch.randint(num_rows, (sizes.checked_bags, 20))
    want = (values.double() * head[:, :1].double() + head[:, 1:].double())[ids].sum(1)
    flat, offsets = ids.flatten().int(), torch.arange(sizes.checked_bags + 1) * 20
    lengths = torch.full((sizes.checked_bags,), 20, dtype=torch.int32, device=sizes.device)
    bags = RewrittenBags(flat.to(sizes.device), lengths, lengths, None)
    out = torch.full((sizes.checked_bags, dim), torch.nan, device=sizes.device)
    table = DeviceRows(rows.to(sizes.device), dim, bits)
    pool_rows(bags, offsets.to(sizes.device), table, out, mean=False)
    error = float((out.cpu().double() - want).norm() / want.norm())
    return {"ok": error < 1e-6, "error": error}
