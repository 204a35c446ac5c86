"""end_to_end: the fields of the contract, on a small generated trace."""

import pytest
import torch

from bench.cases.end_to_end import end_to_end
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.traces.synthetic import generate


def test_every_part_is_reported_and_the_outputs_are_equal():
    torch.set_num_threads(1)
    result = end_to_end(
        generate(500, 400, seed=2), "embedding_heavy", dim=64, batch_size=64, rounds=2,
        memory=MemoryModel.named("a40"),
    )  # fmt: skip
    assert result["verdict"] == "use"
    assert 0 < result["cut"] < 0.5
    assert result["max_abs_error"] < 1e-5
    for entrant in ("stock", "ours"):
        parts = result[entrant]
        assert set(parts) == {"p50_ms", "p95_ms", "rewrite_ms", "lookup_ms", "dense_ms"}
        assert 0 < parts["p50_ms"] <= parts["p95_ms"]
    assert result["stock"]["rewrite_ms"] == 0
    assert result["ours"]["rewrite_ms"] > 0
    assert set(result["model_ratio"]) == {"median", "q20", "q80"}


def test_more_histories_are_read_and_rewritten_each_from_its_own_table():
    torch.set_num_threads(1)
    sizes = {}
    for histories in (1, 3):
        result = end_to_end(
            generate(500, 400, seed=2), "embedding_heavy", dim=64, batch_size=64, rounds=1,
            memory=MemoryModel.named("a40"), histories=histories,
        )  # fmt: skip
        assert result["max_abs_error"] < 1e-5
        sizes[histories] = result
    assert 0 < sizes[1]["lookup_share"] < 1
    assert sizes[3]["cut"] == pytest.approx(sizes[1]["cut"], abs=0.02)
