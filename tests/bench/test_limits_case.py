"""limits: the bare loops touch what the product touches, and the case says how far it is from them."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bench import bare_loops
from bench.cases.limits import command, pair_limits
from grace_kernels.packed_codes import pack_codes
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.traces.trace import Trace


@pytest.fixture
def codes():
    """Codes of 200 items, every third in no cluster."""
    code_N = np.arange(200, dtype=np.int32)
    code_N[::3] = -1
    return code_N


def test_every_row_is_touched_line_by_line():
    rows = torch.arange(64, dtype=torch.int64).reshape(4, 16)  # 128 bytes: two cache lines a row
    addresses = rows.data_ptr() + 128 * np.array([3, 0, 3, 1])
    want = np.bitwise_xor.reduce([48, 56, 0, 8, 48, 56, 16, 24])
    for ahead in bare_loops.DISTANCES:
        assert bare_loops.touch_function(128)(addresses, ahead) == want


def test_codes_are_read_and_their_clusters_counted(codes):
    packed = pack_codes(codes)
    padded = np.append(packed.codes_C, 0).astype(np.int32)
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 40))])
    ids = rng.integers(0, 200, offsets[-1])
    clustered = codes[ids][codes[ids] >= 0]
    assert bare_loops.touch_codes(ids, packed.words_W, padded) == clustered.sum()
    counters, aside = np.zeros(32, np.int64), np.zeros(8 * 9 + 1, np.int64)
    bare_loops.increment_clusters(ids, offsets, packed.words_W, padded, counters, aside)
    np.testing.assert_array_equal(counters, np.bincount((clustered >> 3) & 31, minlength=32))


def test_the_limit_of_pair_counting_counts_the_same_edges():
    rng = np.random.default_rng(1)
    trace = Trace.from_bags([rng.choice(50, 6, replace=False) for _ in range(80)])
    found = pair_limits(trace, rounds=1)
    assert found["edges"] == count_pairs(trace).partners_E.size
    assert found["items"] == trace.num_items
    assert found["increments"] == 80 * 6 * 6


def test_the_case_prints_a_distance_for_each_hot_path():
    options = ["--dim", "8", "--rows", "4000", "--rounds", "1", "--generate", "300,400", "--json"]
    done = CliRunner().invoke(command, options, catch_exceptions=False)
    printed = json.loads(done.output.splitlines()[-1])
    found = {name: printed[part]["distance"][name]["median"] for part, name in (
        ("lookup_8", "ahead"), ("lookup_8", "fused"), ("rewriting", "rewrite"), ("pairs", "pairs"))}  # fmt: skip
    assert all(distance > 0 for distance in found.values())
    assert printed["lookup_8"]["call_us"]["stock_ebc"]["median"] > 0
