"""What choosing picks saves in the swapped module what it saves on paper, rows counted there."""

import numpy as np
import pytest
import torch
from torchrec import KeyedJaggedTensor

from grace_torchrec import rewrite
from grace_torchrec.grouping.choose import pick
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.modules.verify import verify
from grace_torchrec.sums.arrays import code_kind
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags

pytestmark = pytest.mark.soak  # tests/contracts/test_served_figures.py is the short form

TRACES = (
    "ml100k", "ml1m", "gowalla_full", "gowalla_poi", "tafeng_users", "tafeng_baskets", "retail",
    "citeulike_a", "youshu_bundles", "steam200k",
)  # fmt: skip


def batches_of(trace, size=512):
    """The bags of a trace, ids in source order."""
    for first in range(0, trace.num_bags, size):
        part = trace.take(np.arange(first, min(first + size, trace.num_bags)))
        yield KeyedJaggedTensor(
            keys=["item"],
            values=torch.from_numpy(part.ids_L.astype(np.int64)),
            lengths=torch.from_numpy(np.diff(part.offsets_B1)),
        )


@pytest.fixture
def reads_in_the_module(table_of, collection_of, swap_of):
    """Return (sums, test bags) -> (ids, rows read) of the swapped module, equal to the stock one.

    Half of the sums lie in each memory. Sets are rewritten ahead, the other codes in line.
    """

    def read(sums, test):
        stock = collection_of([table_of(num_rows=test.num_items)])
        ahead = code_kind(sums) == "sets"
        lookup = "ahead" if ahead else "fused"
        swapped = swap_of(stock, sums=sums, num_hbm_sums=sums.num_sums // 2, lookup=lookup)
        batches = batches_of(test)
        result = verify(swapped, rewrite(batches, swapped) if ahead else batches)
        assert result.equal
        assert result.max_abs_error == 0  # whole numbers
        (table,) = result.tables
        return table.ids, table.rows_read

    return read


@pytest.mark.parametrize("name", TRACES)
def test_the_picked_sums_cut_the_same_in_the_swapped_module(trace_path, name, reads_in_the_module):
    split = split_bags(read_npz(trace_path(name)), 0)
    budgets = [int(share * split.train.num_items) for share in (1.0, 0.5, 0.25)]
    fit_part, whole = (
        CountedTrace(part, budgets[0], split.fit.num_bags) for part in (split.fit, split.train)
    )
    for budget in budgets:
        for allow in ("in_line", "ahead"):
            sums = pick(fit_part, split.validation, budget, allow).best.build(whole, budget)
            told = count_reads(split.test, sums)
            assert told.cut > 0
            ids, rows_read = reads_in_the_module(sums, split.test)
            assert (ids, rows_read) == (split.test.num_ids, told.rows_after)
            assert 1 - rows_read / ids == told.cut
