"""Counts of row caches are those of fbgemm; tables without a cache have none."""

import torch
from torch import nn

from grace_torchrec.serve.cache_stats import cache_stats
from grace_torchrec.serve.table_pieces import batches_of


def test_tables_that_lie_whole_in_a_memory_have_no_hits(model_of, served_of, batch):
    served = served_of(model_of(), row_dtype="int8")
    served(*batch)
    assert cache_stats(served) == []


def test_counts_of_a_cache_are_given_by_name_and_reset(model_of, served_of):
    served = served_of(model_of(), row_dtype="int8")
    batch = batches_of(served.model)[0]
    batch.gather_uvm_cache_stats = True  # as on a GPU, where the cache fills the counters
    batch.lxu_cache_weights = torch.zeros(32, 8, dtype=torch.uint8)
    batch.uvm_cache_stats.copy_(torch.tensor([3, 100, 40, 10, 2, 7]))
    (found,) = cache_stats(served, reset=True)
    assert (found.calls, found.requested, found.unique, found.missed) == (3, 100, 40, 10)
    assert found.crowded_out == 2
    assert found.hit_share == 0.75
    assert found.tables == tuple(spec[0] for spec in batch.embedding_specs)
    (after,) = cache_stats(served)
    assert (after.requested, after.hit_share) == (0, 0.0)


def test_a_module_without_table_batches_has_none():
    assert cache_stats(nn.Linear(2, 2)) == []
