"""Tables with clusters and bags that save two fifths of their rows, made on the device.

Flow: *make_table*, *make_bags* -> stages of gpu_check.py.  No numpy loops: a table of millions
of rows is made in a second.
Shapes: B bags of P ids, D dimension, N items, R stored rows, C clusters, K cluster size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu_run import Sizes
from grace_kernels.build_sums import build_rows
from grace_kernels.device_rows import DeviceRows, DeviceSubsets

TRIPLE_SHARE = 0.6  # of the ids of a bag come three from a cluster: 40 % of the rows are saved


@dataclass(frozen=True)
class Table:
    """A table with clusters of 3 to 6 items, in every form the entrants need."""

    rows_ND: Tensor
    sums_RD: Tensor
    code_N: Tensor
    members_C8: Tensor
    sizes_C: Tensor
    singles: Tensor

    def device_rows(self) -> DeviceRows:
        """All sums in HBM."""
        return DeviceRows(
            self.rows_ND, self.rows_ND.shape[1], 0, self.sums_RD, num_hbm_sums=len(self.sums_RD)
        )


def subset_code(table: Table) -> tuple[Tensor, DeviceSubsets]:
    """Return codes and subset tables of the same clusters: every subset is stored, in the same order.

    So a bag reads the same rows, at the same addresses, and only the way to them differs.
    """
    device, code_N = table.sizes_C.device, torch.full_like(table.code_N, -1)
    starts_C = (1 << table.sizes_C).cumsum(0) - (1 << table.sizes_C)
    slots_8 = torch.arange(8, device=device)
    here_C8 = slots_8 < table.sizes_C[:, None]
    code_C8 = starts_C[:, None] * 8 + slots_8
    code_N[table.members_C8[here_C8]] = code_C8[here_C8].to(code_N.dtype)
    masks = [torch.arange(1 << k, device=device) for k in range(9)]
    sizes, counts = table.sizes_C.unique(return_counts=True)  # rise: clusters stand in this order
    each = zip(sizes.tolist(), counts.tolist(), strict=True)
    next_E = torch.cat([masks[k].repeat(count) for k, count in each])
    stored = torch.nn.functional.pad((next_E & (next_E - 1)) != 0, (0, -len(next_E) % 32))
    stored_W32 = stored.view(-1, 32).long()
    bits_W = (stored_W32 << torch.arange(32, device=device)).sum(1)
    ranks_W = stored_W32.sum(1).cumsum(0) - stored_W32.sum(1)
    return code_N, DeviceSubsets(next_E.to(torch.uint8), (ranks_W << 32) | bits_W)


def make_table(sizes: Sizes, dim: int, dtype: torch.dtype) -> Table:
    """Make random rows and clusters; stored rows are built by the kernel that is checked."""
    device, per_size = sizes.device, sizes.clusters // 4
    num_items = sizes.singles + per_size * (3 + 4 + 5 + 6)
    order = torch.randperm(num_items, device=device)
    code = torch.full((num_items,), -1, dtype=torch.int32, device=device)
    rows = torch.randn(num_items, dim, device=device).to(dtype)
    members_of, sums, used, block = [], [], 0, 0
    for k in (3, 4, 5, 6):
        members = order[used : used + per_size * k].view(per_size, k)
        used, per_block = used + per_size * k, 2**k - 1 - k
        blocks = block + per_block * torch.arange(per_size, device=device)
        code[members] = (blocks[:, None] * 8 + torch.arange(k, device=device)).int()
        block += per_size * per_block
        members_of.append(torch.nn.functional.pad(members, (0, 8 - k)))
        sums.append(_sums_of(rows, members))
    sizes_C = torch.tensor([3, 4, 5, 6], device=device).repeat_interleave(per_size)
    return Table(rows, torch.cat(sums), code, torch.cat(members_of), sizes_C, order[used:])


def _sums_of(rows: Tensor, members_CK: Tensor) -> Tensor:
    """Build the stored rows of clusters of one size, subsets in bit-pattern order."""
    k = members_CK.shape[1]
    subsets = [[s for s in range(k) if m >> s & 1] for m in range(2**k) if m.bit_count() > 1]
    slots = torch.tensor([s for subset in subsets for s in subset], device=rows.device)
    lengths = torch.tensor([len(s) for s in subsets], device=rows.device)
    indptr = torch.zeros(len(subsets) * len(members_CK) + 1, dtype=torch.int64, device=rows.device)
    indptr[1:] = lengths.repeat(len(members_CK)).cumsum(0)
    out = torch.full(
        (indptr.numel() - 1, rows.shape[1]), torch.nan, dtype=rows.dtype, device=rows.device
    )
    build_rows(rows, indptr, members_CK[:, slots].flatten().int(), out)
    return out


def make_bags(sizes: Sizes, table: Table, pooling: int, seed: int) -> Tensor:
    """Return int32 ``[B, P]`` ids in random order: triples out of clusters, and single items."""
    random = torch.Generator(sizes.device).manual_seed(seed)
    triples = int(pooling * TRIPLE_SHARE / 3)
    shape = (sizes.bags, triples)
    draw = {"device": sizes.device, "generator": random}
    # distinct clusters in a bag: a random start and a fixed step
    step = max(1, len(table.sizes_C) // max(triples, 1))
    cluster = torch.randint(len(table.sizes_C), (sizes.bags, 1), **draw) + step * torch.arange(
        triples, device=sizes.device
    )
    cluster %= len(table.sizes_C)
    slot = torch.randint(8, shape, **draw)
    parts = [table.members_C8[cluster, (slot + j) % table.sizes_C[cluster]] for j in range(3)]
    alone = torch.randint(len(table.singles), (sizes.bags, pooling - 3 * triples), **draw)
    ids = torch.cat([*parts, table.singles[alone]], 1)
    order = torch.rand(ids.shape, **draw).argsort(1)
    return ids.gather(1, order).int().contiguous()
