"""Rewriting, gathering and adding up in one pass: equal to its meaning, whatever the layout."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels import threads
from grace_kernels.cpu import BadId, TableRows, pooled_lookup
from grace_kernels.reference import DROP, RAISE, ZERO_ROW
from grace_kernels.subset_tables import pack_subsets
from grace_torchrec.sums.stored_sums import StoredSums

DIMS = [1, 3, 4, 10, 16, 64, 100, 128, 256, 300]
EMPTY = np.zeros(0, np.int32)
SUBSETS = pytest.mark.parametrize("subsets", [False, True], ids=["clusters", "subsets"])


@pytest.fixture(scope="module", autouse=True)
def small_batches_are_shared_too():
    """By itself the lookup divides only large batches over its threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LEAST_BYTES_TO_SHARE", 0)
        yield


def look_up(case, ids, offsets, weights=None, *, mean=False, policy=RAISE, num_threads=1):
    """Look up into the middle of a buffer of NaN: what is not the output must stay NaN."""
    dim = case.rows_ND.shape[1]
    buffer = np.full((offsets.size - 1 + 2, dim + 5), np.nan, np.float32)
    out = buffer[1:-1, 2 : 2 + dim]
    counts = pooled_lookup(
        ids, offsets, weights, case.table, out, mean=mean, policy=policy, num_threads=num_threads
    )
    outside = np.ones(buffer.shape, bool)
    outside[1:-1, 2 : 2 + dim] = False
    assert np.isnan(buffer[outside]).all()
    return out, counts


def wanted(case, ids, offsets, weights=None, *, mean=False, policy=RAISE):
    pooled, rows_read = case.pooled(ids, offsets, weights, mean=mean, policy=policy)
    return pooled.numpy(), rows_read


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("dim", DIMS)
def test_every_dimension_and_type(table_of, offsets_of, dim, dtype):
    """Whole rows: the order of adding does not matter, so every bit must be right."""
    random = np.random.default_rng(dim)
    case = table_of(random, dim=dim, dtype=dtype, hbm_share=0.5, num_hot=5)
    offsets = offsets_of([0, 1, 2, 30, 0, 7, 1])
    ids = random.integers(0, 40, offsets[-1])
    weights = random.choice(np.array([1, 2, -3], np.float32), ids.size)
    for bag_weights, mean in ((None, False), (None, True), (weights, False), (weights, True)):
        out, (asked, read) = look_up(case, ids, offsets, bag_weights, mean=mean)
        pooled, rows_read = wanted(case, ids, offsets, bag_weights, mean=mean)
        np.testing.assert_array_equal(out, pooled)
        assert (asked, read) == (ids.size, rows_read)


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 25), max_size=12),
    hbm_share=st.sampled_from([0.0, 0.4, 1.0]),
    num_hot=st.sampled_from([0, 1, 9]),
    sums=st.sampled_from(["none", "clusters", "subsets"]),
    weighted=st.booleans(),
    mean=st.booleans(),
    policy=st.sampled_from([DROP, ZERO_ROW]),
    num_threads=st.sampled_from([1, 2, 3]),
    half=st.booleans(),
    id_type=st.sampled_from([np.int32, np.int64]),
)
@settings(max_examples=300)
def test_every_layout_of_rows_and_bags(
    table_of, offsets_of, seed, lengths, hbm_share, num_hot, sums, weighted, mean, policy,
    num_threads, half, id_type,
):  # fmt: skip
    random = np.random.default_rng(seed)
    dtype = torch.float16 if half else torch.float32
    case = table_of(random, dim=5, dtype=dtype, sums=sums != "none", subsets=sums == "subsets", hbm_share=hbm_share,
                    num_hot=num_hot)  # fmt: skip
    offsets = offsets_of(lengths)
    ids = random.integers(-3, 43, offsets[-1]).astype(id_type)  # some outside, some padding
    weights = random.choice(np.array([1, 2, 0.5], np.float32), ids.size) if weighted else None
    out, (asked, read) = look_up(
        case, ids, offsets, weights, mean=mean, policy=policy, num_threads=num_threads
    )
    pooled, rows_read = wanted(case, ids, offsets, weights, mean=mean, policy=policy)
    np.testing.assert_array_equal(out, pooled)
    inside = ids != -1 if policy == ZERO_ROW else (ids >= 0) & (ids < 40)
    assert (asked, read) == (inside.sum(), rows_read)


@SUBSETS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_real_numbers_differ_by_rounding_only(table_of, offsets_of, dtype, weighted, subsets):
    random = np.random.default_rng(3)
    case = table_of(random, num_items=300, dim=64, dtype=dtype, whole=False, hbm_share=0.3,
                    subsets=subsets)  # fmt: skip
    offsets = offsets_of(random.integers(0, 60, 50))
    ids = random.integers(0, 300, offsets[-1])
    weights = random.choice(np.array([0.3, 1.7], np.float32), ids.size) if weighted else None
    out, _ = look_up(case, ids, offsets, weights)
    pooled, _ = wanted(case, ids, offsets, weights)
    sizes = abs(case.rows_ND.double().numpy())[ids]
    sizes *= 1 if weights is None else abs(weights)[:, None]
    sizes = np.array([sizes[a:b].sum(0) for a, b in pairwise(offsets)])
    assert (abs(out - pooled) <= 1e-6 * sizes).all()


@SUBSETS
@pytest.mark.parametrize("num_threads", [1, 2])
def test_bags_longer_and_batches_larger_than_a_chunk(table_of, offsets_of, num_threads, subsets):
    """The lookup works through about 2,048 ids at a time."""
    random = np.random.default_rng(4)
    case = table_of(random, num_items=500, dim=4, subsets=subsets)
    offsets = offsets_of([*[3] * 900, 5000, *[0] * 2500, 2047, 1, 2048, 0, 2049, *[1] * 3000])
    ids = random.integers(0, 500, offsets[-1])
    out, counts = look_up(case, ids, offsets, num_threads=num_threads)
    pooled, rows_read = wanted(case, ids, offsets)
    np.testing.assert_array_equal(out, pooled)
    assert counts == (ids.size, rows_read)


@SUBSETS
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_divide_the_bags_without_loss(table_of, offsets_of, num_threads, subsets):
    """Also where most bags are empty, or one bag holds nearly all ids."""
    random = np.random.default_rng(5)
    case = table_of(random, num_hot=4, subsets=subsets)
    for lengths in ([0] * 40, [0, 0, 900, *[0] * 30, 1], [1] * 37, [7, *[0] * 20]):
        offsets = offsets_of(lengths)
        ids = random.integers(0, 40, offsets[-1])
        out, counts = look_up(case, ids, offsets, num_threads=num_threads)
        pooled, rows_read = wanted(case, ids, offsets)
        np.testing.assert_array_equal(out, pooled)
        assert counts == (ids.size, rows_read)


def test_a_hot_row_is_read_instead_of_the_original(table_of, offsets_of):
    """Told apart by rows that differ: in truth they are copies."""
    case = table_of(np.random.default_rng(6), num_hot=40, sums=False)
    case.table.hbm_RD[:] = 1000.0
    out, _ = look_up(case, np.array([3, 3, 9]), offsets_of([3]))
    np.testing.assert_array_equal(out, np.full((1, 8), 3000.0))


def test_a_sum_is_read_instead_of_its_items(offsets_of):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    code = np.array([-1, 0, 1, 2, -1, -1], np.int32)  # items 1, 2, 3: sums 12, 13, 23, 123
    hbm = np.array([[100, 1], [200, 2]], np.float32)
    host = np.array([[300, 3], [400, 4]], np.float32)
    table = TableRows(rows, hbm, host, code, EMPTY, 2)
    ids = np.array([1, 2, 3, 1, 3, 2, 3, 2, 1, 0])
    out = np.empty((5, 2), np.float32)
    _, read = pooled_lookup(
        ids, offsets_of([2, 2, 2, 3, 1]), None, table, out, mean=False, policy=RAISE, num_threads=1
    )
    np.testing.assert_array_equal(out, [[100, 1], [200, 2], [300, 3], [400, 4], [0, 1]])
    assert read == 5


def test_a_bad_id_that_reads_row_0_joins_no_sum(offsets_of):
    """Row 0 and item 1 have a sum of 1,000 here: it must not be read for ids 99 and 1."""
    rows = np.array([[1], [2], [4]], np.float32)
    table = TableRows(
        rows, rows[:0], np.array([[1000]], np.float32), np.array([0, 1, -1], np.int32), EMPTY, 0
    )
    out = np.empty((2, 1), np.float32)
    asked, read = pooled_lookup(
        np.array([99, 1, 0, 1]), offsets_of([2, 2]), None, table, out, mean=False, policy=ZERO_ROW,
        num_threads=1,
    )  # fmt: skip
    np.testing.assert_array_equal(out, [[3], [1000]])
    assert (asked, read) == (4, 3)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_of_a_row_reach_its_bags_only(table_of, offsets_of, special):
    case = table_of(np.random.default_rng(7), sums=False)
    case.rows_ND[3] = special
    out, _ = look_up(case, np.array([1, 3, 2, 2, 3]), offsets_of([2, 2, 0, 1]))
    np.testing.assert_array_equal(np.isfinite(out).all(1), [False, True, True, False])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_first_bad_id_is_named(table_of, offsets_of, num_threads, weighted):
    case = table_of(np.random.default_rng(8))
    ids = np.zeros(60, np.int64)
    ids[[31, 12, 50]] = 40, -7, 2**40
    weights = np.ones(60, np.float32) if weighted else None
    with pytest.raises(BadId) as caught:
        look_up(case, ids, offsets_of([3] * 20), weights, num_threads=num_threads)
    assert (caught.value.position, caught.value.id) == (12, -7)


@pytest.mark.parametrize(
    ("num_rows", "dim", "dtype"),
    [(2**26, 32, np.float32), (2**25, 100, np.float32), (2**26, 65, np.float16)],
)
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
def test_rows_past_2_to_the_31_bytes_and_elements(offsets_of, num_rows, dim, dtype, id_type):
    """Address arithmetic is 64 bit. The table is mapped, not filled: only read pages are real."""
    size = num_rows * dim * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    rows = np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype).reshape(num_rows, dim)
    last = num_rows - 1
    rows[[last, last - 7, 1]] = [[1], [10], [100]]
    table = TableRows(rows, rows[:0], rows[:0], EMPTY, EMPTY, 0)
    ids = np.array([last, last - 7, 1, last, 5], id_type)
    out = np.empty((2, dim), np.float32)
    pooled_lookup(
        ids, offsets_of([3, 2]), None, table, out, mean=False, policy=RAISE, num_threads=1
    )
    np.testing.assert_array_equal(out, np.repeat([[111], [1]], dim, 1))


@SUBSETS
def test_codes_of_64_bits_are_read_as_well(table_of, offsets_of, subsets):
    random = np.random.default_rng(9)
    case = table_of(random, hbm_share=0.5, subsets=subsets)
    wide = replace(case.table, codes=case.table.codes.astype(np.int64))
    ids, offsets = random.integers(0, 40, 90), offsets_of([30, 0, 60])
    out, counts = look_up(replace(case, table=wide), ids, offsets)
    pooled, rows_read = wanted(case, ids, offsets)
    np.testing.assert_array_equal(out, pooled)
    assert counts == (90, rows_read)


@SUBSETS
@pytest.mark.parametrize("num_threads", [1, 2])
def test_concurrent_lookups_do_not_disturb_each_other(table_of, offsets_of, num_threads, subsets):
    """The lookup releases the interpreter lock: a server calls it from many threads at once."""
    random = np.random.default_rng(10)
    case = table_of(random, num_items=200, dim=16, hbm_share=0.5, num_hot=9, subsets=subsets)
    offsets = offsets_of([20] * 100)
    batches = [random.integers(0, 200, 2000) for _ in range(40)]

    def pool(ids):
        return look_up(case, ids, offsets, num_threads=num_threads)[0]

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(pool, batches))
    for out, ids in zip(together, batches, strict=True):
        np.testing.assert_array_equal(out, pool(ids))


@SUBSETS
def test_ids_that_do_not_follow_each_other_in_memory(table_of, offsets_of, subsets):
    case = table_of(np.random.default_rng(0), subsets=subsets)
    ids, offsets = (np.arange(80) // 2)[::2], offsets_of([17, 23])
    out, counts = look_up(case, ids, offsets)
    want, want_counts = look_up(case, np.ascontiguousarray(ids), offsets)
    np.testing.assert_array_equal(out, want)
    assert counts == want_counts


def test_codes_of_another_table_are_refused(table_of, offsets_of):
    case = table_of(np.random.default_rng(0))
    other = replace(case.table, codes=case.table.codes[:-1])
    with pytest.raises(ValueError, match="codes are for 39 items, the table has 40 rows"):
        look_up(replace(case, table=other), np.arange(3), offsets_of([3]))


def test_subset_tables_of_another_table_are_refused(table_of, offsets_of):
    random = np.random.default_rng(0)
    case, other = table_of(random, subsets=True), table_of(random, num_items=12, subsets=True)
    small = replace(case.table, subsets=other.table.subsets)
    with pytest.raises(ValueError, match=r"codes name \d+ entries, the subset tables have \d+"):
        look_up(replace(case, table=small), np.arange(3), offsets_of([3]))
    short = replace(case.table, host_RD=case.table.host_RD[:-1])
    with pytest.raises(ValueError, match=r"name \d+ stored rows, the table has \d+"):
        look_up(replace(case, table=short), np.arange(3), offsets_of([3]))


def test_a_part_of_a_mask_reads_its_sum_and_the_rest_its_own_rows(offsets_of):
    """Items 1, 2, 3 and 4 are a cluster that stores 1 + 3 and 2 + 4 only, told apart by their rows."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    sums = StoredSums.from_subsets(6, np.array([0, 4]), np.arange(1, 5), np.array([0b0101, 0b1010]))
    subsets = pack_subsets(sums.code.next_E, sums.code.stored_W)
    hbm, host = np.array([[100, 1]], np.float32), np.array([[300, 3]], np.float32)
    table = TableRows(rows, hbm, host, sums.code.item_code_N, EMPTY, 1, subsets)
    ids = np.array([3, 1, 4, 2, 1, 2, 3, 4, 3, 2, 1, 0, 1])
    offsets, out = offsets_of([2, 2, 4, 3, 2]), np.empty((5, 2), np.float32)
    _, read = pooled_lookup(ids, offsets, None, table, out, mean=False, policy=RAISE, num_threads=1)
    np.testing.assert_array_equal(out, [[100, 1], [300, 3], [400, 4], [104, 6], [2, 4]])
    assert read == 1 + 1 + 2 + 2 + 2


def test_row_zero_of_a_table_without_rows_is_not_read(offsets_of):
    rows = np.ones((1, 4), np.float32)
    table = TableRows(rows[:0], rows[:0], rows[:0], EMPTY, EMPTY, 0)
    out = np.empty((1, 4), np.float32)
    pooled_lookup(
        np.array([5]), offsets_of([1]), None, table, out, mean=False, policy=ZERO_ROW, num_threads=1
    )
    assert not out.any()
