"""Joint choice: near the exact optimum, never slower than stock, balanced where that is possible."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from grace_sharding.joint import decide
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.variants import GROUPS, Rungs, Variant, climb

NONE_G = np.zeros(GROUPS)


def machine(hbm_bytes, beta=0.1, host_bytes=10**12):
    return MemoryModel("m", (Tier("hbm", hbm_bytes, 1.0), Tier("host", host_bytes, beta)))


def rows_of(reads):
    """Rungs of one row each: what is expected is what is read."""
    reads = np.sort(np.asarray(reads, np.float64))[::-1]
    reads_GK = np.tile(reads / GROUPS, (GROUPS, 1))
    return Rungs(reads, np.ones(reads.size, np.int64), reads_GK, reads)


def table(reads, sums, replaced, row=1):
    """Stock in host or HBM, hot rows, and sums that take ``replaced`` reads off the rows."""
    plain, left = rows_of(reads), rows_of(np.asarray(reads) * (1 - replaced))
    size, asked_G = len(reads) * row, np.full(GROUPS, sum(reads) * row / GROUPS)
    nothing = climb((Rungs.none(),), row, row)
    variants = [
        Variant("host", False, 0, size, NONE_G, asked_G, *nothing),
        Variant("hbm", False, size, 0, asked_G, NONE_G, *nothing),
        Variant("host", True, 1, size, NONE_G, NONE_G, *climb((plain,), row, row)),
    ]
    stored = climb((left, rows_of(sums)), row, row)
    variants.append(Variant("host", True, 1, size + len(sums) * row, NONE_G, NONE_G, *stored))
    return variants


def exact(tables, memory, relaxed=False):
    """The least time of any variants and any rungs in HBM: a mixed integer program.

    Returns that time and how long each memory is busy; relaxed, parts of variants may be picked.
    """
    flat = [(t, v) for t, own in enumerate(tables) for v in own]
    rungs = [(number, k) for number, (_, v) in enumerate(flat) for k in range(v.bytes_K.size)]
    num = 1 + len(flat) + len(rungs)  # the time, who is picked, which rungs are in HBM
    hbm, host, space = np.zeros(num), np.zeros(num), np.zeros(num)
    rows, low, high = [], [], []

    def row(entries, least, most):
        line = np.zeros(num)
        for place, value in entries:
            line[place] += value
        rows.append(line)
        low.append(least)
        high.append(most)

    for number, (_, v) in enumerate(flat):
        hbm[1 + number] = v.hbm_read_G.sum()
        host[1 + number] = v.host_read_G.sum() + v.rung_read_GK.sum()
        space[1 + number] = v.hbm_bytes
    for place, (number, k) in enumerate(rungs, 1 + len(flat)):
        v = flat[number][1]
        read = v.rung_read_GK[:, k].sum()
        hbm[place], host[place], space[place] = read, -read, v.bytes_K[k]
        row([(place, 1), (1 + number, -1)], -np.inf, 0)
    for t in range(len(tables)):
        row([(1 + n, 1) for n, (other, _) in enumerate(flat) if other == t], 1, 1)
    first = np.eye(num)[0]
    rows += [
        hbm / memory.hbm.bytes_per_s - first, host / memory.host.bytes_per_s - first, space
    ]  # fmt: skip
    low, high = [*low, -np.inf, -np.inf, 0], [*high, 0, 0, memory.hbm.num_bytes]
    bounds = Bounds(np.zeros(num), np.concatenate([[np.inf], np.ones(num - 1)]))
    whole = np.concatenate([[0], np.full(num - 1, not relaxed)])
    solved = milp(first, constraints=LinearConstraint(np.array(rows), low, high),
                  integrality=whole, bounds=bounds)  # fmt: skip
    assert solved.success
    hbm_s, host_s = hbm @ solved.x, host @ solved.x
    return solved.fun, hbm_s / memory.hbm.bytes_per_s, host_s / memory.host.bytes_per_s


def some_tables(seed, how_many=3):
    """Tables of 25 rows with ten sums, reads after a power law."""
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(how_many):
        reads = np.floor(100 / np.arange(1, 26) ** rng.uniform(0.3, 1.2)).astype(int) + 1
        saved = rng.uniform(0.1, 0.6)
        sums = np.full(10, saved * reads.sum() / 2 / 10)
        tables.append(table(reads, sums, saved))
    return tables


@pytest.mark.parametrize("beta", [0.013, 0.1, 0.294, 1.0])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_within_two_percent_of_the_exact_optimum(beta, share, seed):
    tables, memory = some_tables(seed), machine(int(share * 75) + 3, beta)
    found = decide(tables, memory, resample=False)
    assert found.time_s <= 1.02 * exact(tables, memory)[0]


@pytest.mark.parametrize("beta", [0.036, 0.1, 0.294, 1.0])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_memories_are_balanced_where_the_continuous_relaxation_is(beta, share, seed):
    tables, memory = some_tables(seed, 6), machine(int(share * 150) + 6, beta)
    _, hbm_s, host_s = exact(tables, memory, relaxed=True)
    found = decide(tables, memory)
    slower = max(found.hbm_read_T.sum(), found.host_read_T.sum() / beta)
    imbalance = 1 - min(found.hbm_read_T.sum(), found.host_read_T.sum() / beta) / slower
    if abs(hbm_s - host_s) <= 1e-6 * max(hbm_s, host_s):
        assert imbalance <= 0.1
    else:  # HBM is too small: host memory is the slower one whatever is picked
        assert host_s > hbm_s


reads_lists = st.lists(st.integers(0, 60), min_size=2, max_size=20)
models = st.lists(st.tuples(reads_lists, reads_lists, st.floats(0, 1)), min_size=1, max_size=4)


@given(models, st.integers(0, 60), st.sampled_from([0.013, 0.1, 1.0]))
def test_never_slower_than_what_it_begins_with(parts, hbm_bytes, beta):
    tables = [table(*part) for part in parts]
    memory = machine(hbm_bytes, beta)
    starts = [np.array(one) for one in itertools.product((0, 1), repeat=len(tables))]
    found = decide(tables, memory, starts, resample=False)
    for picked in starts:
        chosen = [own[v] for own, v in zip(tables, picked, strict=True)]
        if sum(v.hbm_bytes for v in chosen) <= hbm_bytes:
            hbm_s = sum(v.hbm_read_G.sum() for v in chosen)
            host_s = sum(v.host_read_G.sum() for v in chosen) / beta
            assert found.time_s <= max(hbm_s, host_s) / 0.99 + 1e-9


@given(models, st.integers(0, 60), st.integers(0, 300))
def test_what_is_picked_fits_in_both_memories(parts, hbm_bytes, more):
    tables = [table(*part) for part in parts]
    host_bytes = sum(own[0].host_bytes for own in tables) + more
    memory = machine(hbm_bytes, host_bytes=host_bytes)
    found = decide(tables, memory)
    chosen = [own[v] for own, v in zip(tables, found.picked_T, strict=True)]
    assert sum(v.hbm_bytes for v in chosen) <= found.hbm_bytes <= hbm_bytes
    assert sum(v.host_bytes for v in chosen) <= host_bytes


@given(models, st.integers(0, 60))
def test_reads_of_the_tables_add_up(parts, hbm_bytes):
    tables = [table(*part) for part in parts]
    found = decide(tables, machine(hbm_bytes), resample=False)
    for t, own in enumerate(tables):
        v = own[found.picked_T[t]]
        asked = v.hbm_read_G.sum() + v.host_read_G.sum() + v.rung_read_GK.sum()
        assert np.isclose(found.hbm_read_T[t] + found.host_read_T[t], asked)
    slower = max(found.hbm_read_T.sum(), found.host_read_T.sum() / 0.1)
    assert np.isclose(slower, found.time_s, rtol=1e-6)


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.5, 1.0])
def test_memories_are_balanced_where_rows_allow_it(beta):
    reads = np.full(1000, 3)
    (hot,) = table(reads, [1], 0.0)[2:3]
    found = decide([[hot]], machine(5000, beta), resample=False)
    hbm_s, host_s = found.hbm_read_T.sum(), found.host_read_T.sum() / beta
    assert abs(hbm_s - host_s) <= 0.1 * max(hbm_s, host_s)


@pytest.mark.parametrize("beta", [0.03, 0.1, 0.5, 1.0])
def test_a_thousand_tables_that_are_alike_share_the_memories(beta):
    """At any weight of the memories they all want the same; only some of them may get it."""
    nothing = climb((Rungs.none(),), 1, 1)
    tables = []
    for size in np.random.default_rng(0).integers(10, 200, 1000).tolist():
        asked_G = np.full(GROUPS, 3.0 * size)
        tables.append(
            [
                Variant("host", False, 0, size, NONE_G, asked_G, *nothing),
                Variant("hbm", False, size, 0, asked_G, NONE_G, *nothing),
            ]
        )
    found = decide(tables, machine(10**6, beta))
    hbm_s, host_s = found.hbm_read_T.sum(), found.host_read_T.sum() / beta
    assert abs(hbm_s - host_s) <= 0.05 * max(hbm_s, host_s)  # a table is 4 % of host reads at 0.03
    asked = sum(own[0].host_read_G.sum() for own in tables)
    assert found.time_s <= 1.01 * asked / (1 + beta)  # of the continuous relaxation


def test_bags_that_differ_leave_less_to_host_memory():
    worth = np.full(400, 2.0)
    even = np.tile(worth / GROUPS, (GROUPS, 1))
    uneven = even * (np.arange(GROUPS) % 4 == 0)[:, None] * 4
    rows = np.ones(400, np.int64)
    stops = []
    for reads in (even, np.concatenate([even[:, :300], uneven[:, 300:]], axis=1)):
        rungs = Rungs(worth, rows, reads, worth)
        variant = Variant("host", True, 0, 400, NONE_G, NONE_G, *climb((rungs,), 1, 1))
        stops.append(decide([[variant]], machine(400)).hbm_bytes)
    assert stops[1] > stops[0]


def test_without_gain_worth_its_trouble_hbm_is_filled():
    (hot,) = table(np.full(100, 3), [1], 0.0)[2:3]
    assert decide([[hot]], machine(101, beta=0.005), resample=False).hbm_bytes == 101


def test_one_memory_has_nothing_to_fill_and_takes_what_reads_least():
    stock = table([3, 2, 1], [1], 0.5)[0]
    stored = climb((rows_of([1.5, 1, 0.5]), rows_of([1])), 1, 1)
    sums = Variant("host", False, 0, 4, NONE_G, NONE_G, *stored)
    found = decide([[stock, sums]], MemoryModel.named("cpu"), resample=False)
    assert (found.hbm_bytes, found.hbm_read_T.sum()) == (0, 0)
    assert found.picked_T.tolist() == [1]


def test_a_price_is_a_share_of_the_best_stock_time():
    (hot,) = table(np.full(100, 3), [1], 0.0)[2:3]
    stock = table(np.full(100, 3), [1], 0.0)[:2]
    for price, picked in ((0.05, 2), (0.15, 1)):  # hot rows save a tenth of what HBM alone takes
        priced = replace(hot, price=price)
        found = decide([[*stock, priced]], machine(101), resample=False)
        assert found.picked_T.tolist() == [picked]
