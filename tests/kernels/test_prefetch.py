"""What is asked of memory ahead of time: rows of the right table, all of them, and nothing else.

A wrong prefetch changes no result, so these tests listen to the calls that order one. The lookup
itself then runs as Python, what it calls stays compiled.
"""

import ctypes
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_kernels import _lookup, cpu, table_rows
from grace_kernels._prefetch import (
    END,
    NEXT,
    PACE,
    QUEUE_SIZE,
    prefetch_rest,
    prefetch_rows,
    refill,
)
from grace_kernels._split_ids import GROUP
from grace_kernels._sum_rows import AHEAD
from grace_kernels.cpu import FeatureRows
from grace_kernels.reference import RAISE


@given(st.integers(0, 3000), st.integers(0, 3000), st.floats(0, 1))
def test_a_queue_is_empty_when_as_many_ids_are_rewritten(num_rows, num_ids, share) -> None:
    """Rows left after the groups of eight are taken one by one while clusters are merged."""
    rows = np.zeros(max(num_rows, 1), np.int64)
    queue = np.zeros(QUEUE_SIZE, np.int64)
    clustered = int(num_ids * share)
    refill(queue, rows.ctypes.data, num_rows, 64, num_ids, clustered)
    assert (queue[NEXT], queue[END]) == (0, num_rows)
    assert queue[PACE] >= 1
    for _ in range(num_ids // GROUP):
        prefetch_rows(queue)
        assert 0 <= queue[NEXT] <= queue[END] == num_rows
    assert num_ids < GROUP or num_rows - queue[NEXT] <= clustered
    prefetch_rest(queue)
    assert queue[NEXT] == num_rows


@pytest.fixture(params=[True, False], ids=["mixed", "apart"])
def mixes(request):
    """Whether rows are prefetched while ids are rewritten."""
    return request.param


@pytest.fixture
def heard(table_of, offsets_of, monkeypatch, mixes):
    """Look up two features with sums and two without; return tables, orders and lists of sums."""
    random = np.random.default_rng(0)
    tables = [
        table_of(random, num_items=300, dim=dim, sums=sums, hbm_share=0.5).table
        for dim, sums in ((3, True), (20, False), (5, True), (7, False))
    ]
    features = FeatureRows(tables, range(4), [False] * 4, mixes)
    offsets = offsets_of([200, 0, 250, 300, 1, 90, 500, 400] * 4)
    ids = random.integers(0, 300, offsets[-1])
    queued, summed = [], []

    def refilled(queue, list_at, num_rows, row_bytes, *others):
        rows = (ctypes.c_int64 * num_rows).from_address(list_at) if num_rows else []
        queued.append((row_bytes, list(rows)))
        refill(queue, list_at, num_rows, row_bytes, *others)

    def finished(features, feature, first, last, offsets, stride, rows, weights, ends, *others):
        finish(features, feature, first, last, offsets, stride, rows, weights, ends, *others)
        end = ends[last - first]
        summed.append((feature, rows[:end].tolist(), rows[end : end + AHEAD].tolist()))

    finish = _lookup._finish
    monkeypatch.setattr(_lookup, "refill", refilled)
    monkeypatch.setattr(_lookup, "_finish", finished)
    out = np.empty((8, features.width), np.float32)
    reads = np.zeros((4, 2), np.int64)
    _lookup.lookup_span.py_func(
        0, 32, ids, offsets, cpu.EMPTY_F32, features.columns(False), 8, RAISE, out.ctypes.data,
        out.strides[0], reads, features.rare(False),
    )  # fmt: skip
    assert [sum(len(rows) for f, rows, _ in summed if f == feature) for feature in range(4)] == (
        reads[:, 1].tolist()
    )
    return tables, queued, summed


def places(table) -> set[int]:
    """Return the address of every row of a table."""
    parts = (table.rows_ND, table.hbm_RD, table.host_RD)
    return {
        part.ctypes.data + row * table.columns[4] for part in parts for row in range(part.shape[0])
    }


def test_queued_rows_have_the_size_of_their_own_table(heard) -> None:
    tables, queued, summed = heard
    assert len(queued) == len(summed) > 2 * len(tables)  # several chunks of each feature
    for (row_bytes, rows), (feature, _, _) in zip(queued, summed, strict=True):
        assert row_bytes == tables[feature].columns[4]
        assert set(rows) <= places(tables[feature])


@pytest.mark.parametrize("mixes", [True], ids=["mixed"], indirect=True)
def test_every_row_of_a_table_with_sums_is_queued_before_it_is_summed(heard) -> None:
    tables, queued, summed = heard
    for (_, asked), (feature, rows, _) in zip(queued, summed, strict=True):
        if tables[feature].num_sums:
            assert asked == rows


def test_a_list_goes_on_with_the_first_rows_of_the_next_chunk(heard) -> None:
    """Tables without sums are prefetched from their lists, across the end of a chunk."""
    _, _, summed = heard
    for (_, rows, ahead), (_, following, _) in pairwise(summed):
        expected = following[:AHEAD]
        assert ahead == expected + rows[-1:] * (AHEAD - len(expected))
    assert summed[-1][2] == summed[-1][1][-1:] * AHEAD


def test_the_first_rows_are_queued_where_those_who_sum_prefetch_the_others(heard, mixes) -> None:
    tables, queued, summed = heard
    firsts = {}
    for (_, asked), (feature, rows, _) in zip(queued, summed, strict=True):
        if not (mixes and tables[feature].num_sums):
            assert asked == ([] if feature in firsts else rows[:AHEAD])
            firsts[feature] = True
    assert len(firsts) == (2 if mixes else 4)


def test_who_sums_prefetches_what_nobody_queues(table_of, mixes, monkeypatch) -> None:
    """The function that is called is the one that the queue counts on."""
    asked = []

    def sum_function(dim, kind, weighted, prefetches):
        asked.append(prefetches)
        return 0

    monkeypatch.setattr(table_rows, "sum_function", sum_function)
    random = np.random.default_rng(0)
    tables = [table_of(random, num_items=300, dim=3, sums=sums).table for sums in (True, False)]
    features = FeatureRows(tables, range(2), [False] * 2, mixes)
    assert features.columns(False)[:, _lookup.SUMS_PREFETCH].tolist() == [not mixes, True]
    assert features.pooling_columns(False)[:, _lookup.SUMS_PREFETCH].tolist() == [True, True]
    assert asked == [not mixes, True, True, True]
