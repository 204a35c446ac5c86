"""Pooling in Triton: equal to its meaning for every row format, memory, policy and weighting."""

import numpy as np
import pytest
import torch

from grace_kernels.clusters import rewrite_clusters
from grace_kernels.device_rows import DeviceRows, DeviceSubsets, RewrittenBags
from grace_kernels.pooling import pool_rows, pool_shape, pooled_lookup
from grace_kernels.reference import DROP, RAISE, ZERO_ROW

LENGTHS = [0, 37, 1, 20]


def device_rows(case) -> DeviceRows:
    """The table of a case as the kernels take it: two tiers, maybe hot rows."""
    table = case.table
    hot = torch.from_numpy(table.hot_row_N) if table.hot_row_N.size else None
    return DeviceRows(
        case.rows_ND, case.rows_ND.shape[1], 0,
        torch.from_numpy(table.hbm_RD), torch.from_numpy(table.host_RD), hot, table.num_hbm_sums,
    )  # fmt: skip


def bags_of(random, num_items, dtype=torch.int64, bad=False):
    ids = torch.from_numpy(random.integers(0, num_items, sum(LENGTHS))).to(dtype)
    if bad:
        ids[::9] = num_items + 3
        ids[4::11] = -1
    return ids, torch.from_numpy(np.concatenate([[0], np.cumsum(LENGTHS)]))


def both_ways(ids, offsets, weights, case, *, mean=False, policy=RAISE):
    """Pool by one kernel and by two, into poisoned outputs; return both and the reads."""
    table = device_rows(case)
    code = torch.from_numpy(case.table.codes)
    num_rows, num_sums = case.rows_ND.shape[0], case.stored_RD.shape[0]
    subsets = None
    if case.table.subsets is not None:
        held = case.table.subsets
        subsets = DeviceSubsets(torch.from_numpy(held.next_E), torch.from_numpy(held.marks_W))
    bad_ids = torch.zeros(1, dtype=torch.int32)
    fused = torch.full((len(offsets) - 1, table.dim), torch.nan)
    asked, read = pooled_lookup(
        ids, offsets, weights, code, table, fused, num_sums=num_sums, mean=mean, policy=policy,
        bad_ids=bad_ids, piece=32, subsets=subsets,
    )  # fmt: skip
    bags = rewrite_clusters(
        ids, offsets, weights, code, num_rows=num_rows, num_sums=num_sums, policy=policy,
        bad_ids=bad_ids, piece=32, subsets=subsets,
    )  # fmt: skip
    assert bags.lengths_B.tolist() == read.tolist()
    assert bags.asked_B.tolist() == asked.tolist()
    apart = torch.full_like(fused, torch.nan)
    pool_rows(bags, offsets, table, apart, mean=mean)
    return fused, apart


def reference(ids, offsets, weights, case, *, mean=False, policy=RAISE):
    """What the bags mean."""
    return case.pooled(ids, offsets, weights, mean=mean, policy=policy)[0]


@pytest.mark.parametrize(
    "spread",
    [
        {"hbm_share": 1.0},
        {"hbm_share": 0.0},
        {"hbm_share": 0.4, "num_hot": 9},
        {"hbm_share": 0.0, "num_hot": 40},
        {"sums": False, "num_hot": 5},
        {"subsets": True, "hbm_share": 0.4, "num_hot": 9},
    ],
    ids=[
        "sums in HBM",
        "sums in host",
        "both and hot rows",
        "every row hot",
        "hot rows only",
        "subsets",
    ],
)
def test_rows_come_from_their_memory(spread, table_of) -> None:
    random = np.random.default_rng(1)
    case = table_of(random, **spread)
    if spread.get("num_hot") == 40:
        case.rows_ND.fill_(torch.nan)  # nobody reads the original of a hot row
        original = torch.from_numpy(case.table.hbm_RD)[case.table.hot_row_N]
    ids, offsets = bags_of(random, 40)
    outs = both_ways(ids, offsets, None, case)
    if spread.get("num_hot") == 40:
        case.rows_ND.copy_(original)
    want = reference(ids, offsets, None, case)
    for out in outs:
        torch.testing.assert_close(out, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [(4, torch.float32), (10, torch.float16), (24, torch.bfloat16), (64, torch.float32)],
)
def test_every_dimension_and_type(dim, dtype, table_of) -> None:
    random = np.random.default_rng(dim)
    case = table_of(random, dim=dim)
    rows, stored = case.rows_ND.to(dtype), case.stored_RD.to(dtype)  # small whole numbers: exact
    ids, offsets = bags_of(random, 40, torch.int32)
    table = DeviceRows(rows, dim, 0, stored, num_hbm_sums=stored.shape[0])
    out = torch.full((len(LENGTHS), dim), torch.nan)
    pooled_lookup(
        ids, offsets, None, case.item_code_N, table, out, num_sums=stored.shape[0], mean=False,
        policy=RAISE, bad_ids=torch.zeros(1, dtype=torch.int32), piece=64,
    )  # fmt: skip
    torch.testing.assert_close(out, reference(ids, offsets, None, case), rtol=0, atol=0)


@pytest.mark.parametrize("subsets", [False, True])
@pytest.mark.parametrize(("policy", "mean"), [(RAISE, False), (DROP, True), (ZERO_ROW, True)])
def test_padding_and_bad_ids(policy, mean, subsets, table_of) -> None:
    random = np.random.default_rng(3)
    case = table_of(random, hbm_share=0.5, subsets=subsets)
    ids, offsets = bags_of(random, 40, bad=True)
    counted = DROP if policy == RAISE else policy  # on the device RAISE leaves them out and counts
    want = reference(ids, offsets, None, case, mean=mean, policy=counted)
    for out in both_ways(ids, offsets, None, case, mean=mean, policy=policy):
        torch.testing.assert_close(out, want, rtol=1e-6 if mean else 0, atol=0)


@pytest.mark.parametrize("subsets", [False, True])
@pytest.mark.parametrize(("kinds", "mean"), [(1, False), (3, True)])
def test_weighted_bags(kinds, mean, subsets, table_of) -> None:
    random = np.random.default_rng(4)
    case = table_of(random, hbm_share=0.5, num_hot=6, subsets=subsets)
    ids, offsets = bags_of(random, 40)
    weights = torch.from_numpy(random.choice(np.array([0.5, 2.0, -1.0], np.float32)[:kinds], 58))
    want = reference(ids, offsets, weights, case, mean=mean)
    for out in both_ways(ids, offsets, weights, case, mean=mean):
        torch.testing.assert_close(out, want, rtol=1e-6 if mean else 0, atol=0)


def test_any_numbers_are_right_to_rounding(table_of) -> None:
    random = np.random.default_rng(5)
    case = table_of(random, whole=False, dim=32, hbm_share=0.5)
    ids, offsets = bags_of(random, 40)
    want = reference(ids, offsets, None, case)
    for out in both_ways(ids, offsets, None, case):
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def quantised(random, num_rows, dim, bits, padding):
    """Random rows in fbgemm's layout, and what they mean."""
    head = torch.from_numpy(random.choice([0.5, 0.25, 2.0, -1.0], (num_rows, 2))).half()
    values = torch.from_numpy(random.integers(0, 1 << bits, (num_rows, dim)).astype(np.uint8))
    packed = values if bits == 8 else values[:, ::2] | (values[:, 1::2] << 4)
    tail = torch.full((num_rows, padding), 255, dtype=torch.uint8)
    rows = torch.cat([head.view(torch.uint8), packed, tail], 1)
    return rows, values.float() * head[:, :1].float() + head[:, 1:].float()


@pytest.mark.parametrize(("bits", "dim"), [(8, 8), (8, 24), (4, 8), (4, 40)])
@pytest.mark.parametrize("weighted", [False, True])
def test_quantised_rows_of_both_memories(bits, dim, weighted) -> None:
    random = np.random.default_rng(bits + dim)
    rows, floats = quantised(random, 30, dim, bits, padding=12)
    ids = torch.from_numpy(random.integers(0, 30, 57)).int()
    offsets = torch.tensor([0, 0, 20, 57])
    weights = torch.from_numpy(random.choice([0.5, 2.0], 57)).float() if weighted else None
    table = DeviceRows(rows[:10], dim, bits, rows[10:18], rows[18:], num_hbm_sums=8)
    bags = RewrittenBags(ids, offsets.diff().int(), offsets.diff().int(), weights)
    out = torch.full((3, dim), torch.nan)
    pool_rows(bags, offsets, table, out, mean=False)
    want = torch.nn.functional.embedding_bag(
        ids.long(), floats, offsets, mode="sum", include_last_offset=True,
        per_sample_weights=weights,
    )  # fmt: skip
    torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-4)


def test_only_the_given_columns_are_written(table_of) -> None:
    random = np.random.default_rng(6)
    case = table_of(random, dim=8)
    ids, offsets = bags_of(random, 40)
    wide = torch.full((len(LENGTHS), 20), 7.0)
    pooled_lookup(
        ids, offsets, None, torch.from_numpy(case.table.codes), device_rows(case),
        wide[:, 4:12], num_sums=case.stored_RD.shape[0], mean=False, policy=RAISE,
        bad_ids=torch.zeros(1, dtype=torch.int32),
    )  # fmt: skip
    torch.testing.assert_close(wide[:, 4:12], reference(ids, offsets, None, case), rtol=0, atol=0)
    assert (wide[:, :4] == 7).all()
    assert (wide[:, 12:] == 7).all()


F32 = torch.zeros(4, 8)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((F32.double(), 8), "no kernel reads torch.float64 rows of 0 bits"),
        ((F32, 8, 8), "no kernel reads torch.float32 rows of 8 bits"),
        ((F32, 8, 3), "rows have 0 .float., 8 or 4 bits, got 3"),
        ((F32, 7), "rows have 8 columns, dim is 7"),
        ((F32, 8, 0, F32.half()), "stored rows must be contiguous and of the format of the table"),
        ((F32, 8, 0, F32[:, :4]), "stored rows must be contiguous"),
        ((F32, 8, 0, None, F32), "stored rows need those in HBM"),
        ((F32, 8, 0, F32, None, torch.zeros(4)), "hot rows must be int32"),
        ((torch.zeros(4, 11, dtype=torch.uint8), 7, 8), "whole 4-byte words"),
        ((torch.zeros(4, 8, dtype=torch.uint8), 8, 8), "8 bytes are too few for 8 values"),
    ],
)
def test_formats_without_a_kernel_are_refused(arguments, what) -> None:
    with pytest.raises(ValueError, match=what):
        DeviceRows(*arguments)


@pytest.mark.parametrize("out", [torch.zeros(2, 9), torch.zeros(2, 8).half(), torch.zeros(8, 2).T])
def test_an_output_that_would_not_be_filled_is_refused(out) -> None:
    none = torch.zeros(2, dtype=torch.int32)
    bags = RewrittenBags(none, none, none, None)
    with pytest.raises(ValueError, match=r"output must be float32 \[2, 8\]"):
        pool_rows(bags, torch.tensor([0, 1, 2]), DeviceRows(F32, 8), out, mean=False)


def test_a_program_holds_a_bounded_number_of_values() -> None:
    for dim in (1, 4, 64, 100, 1024, 4096):
        rows, warps = pool_shape(dim, 0)
        assert rows * dim <= 32 * 32 * warps
