"""lookup: what is saved is what was asked for, entrants are equal before they are timed."""

import itertools

import numpy as np
import pytest
import torch

from bench import lookup_grid
from bench.cases.lookup import RIVALS, check_equal, lookup, ratios_of
from bench.lookup_entrants import in_code_order
from bench.subset_twin import subset_twin
from grace_kernels.reference import RAISE
from grace_torchrec.calibration.grouped_bags import grouped_bags
from grace_torchrec.errors import GraceError
from grace_torchrec.timing import Samples


@pytest.fixture(scope="module")
def bags():
    return grouped_bags(2000, 30, 16, 0.4, num_batches=4)


def test_every_field_of_the_contract_that_this_version_measures(bags):
    result = lookup(bags, 2000, 16, threads=1, rounds=2)
    assert result["saved"] == pytest.approx(0.4)
    assert set(result["ratios"]) == set(RIVALS)
    for name, rivals in RIVALS.items():
        assert set(result["ratios"][name]) == set(rivals)
    for spread in result["ns_per_id"].values():
        assert 0 < spread["p10"] <= spread["median"] <= spread["p90"]
    assert set(result["rewrite_ns_per_id"]) == {"raw", "ordered", "items"}
    assert (
        set(result["subset_ns_per_id"])
        == set(result["subset_over_cluster"])
        == {"fused", "rewrite"}
    )
    assert {"hidden_fraction", "idle_fraction", "address_share", "mode"} <= set(result)


def test_the_twin_under_a_subset_code_reads_the_same_rows(bags):
    """Clusters of four are joined to eight; nothing that is stored crosses them."""
    from grace_kernels.cpu import rewrite_counted

    twin, subsets = subset_twin(bags.sums)
    assert (np.bincount(twin.code.item_code_N[twin.code.item_code_N >= 0] >> 3).max()) == 8
    for ids, offsets in bags.batches:
        arrays = ids.numpy(), offsets.numpy(), None
        _, rows, ends, _ = rewrite_counted(*arrays, bags.sums.code.item_code_N, 2000, RAISE)
        _, ours, our_ends, _ = rewrite_counted(*arrays, twin.code.item_code_N, 2000, RAISE, subsets)
        np.testing.assert_array_equal(ends, our_ends)
        for begin, end in itertools.pairwise(ends.tolist()):
            assert sorted(rows[begin:end]) == sorted(ours[begin:end])


def test_code_order_keeps_bags_and_puts_clusters_together(bags):
    ids, offsets = bags.batches[0]
    code = bags.sums.code.item_code_N
    ordered = in_code_order(ids, offsets, code)
    for a, b in itertools.pairwise(offsets.tolist()):
        assert sorted(ordered[a:b].tolist()) == sorted(ids[a:b].tolist())
        assert (np.diff(code[ordered[a:b].numpy()]) >= 0).all()


def test_an_entrant_that_differs_is_never_timed():
    entrants = {"embedding_bag": lambda k: torch.ones(2, 2), "ours": lambda k: torch.zeros(2, 2)}
    with pytest.raises(GraceError, match="ours differs"):
        check_equal(entrants, 1, "embedding_bag", 1e-5)


def test_a_module_is_compared_with_a_module_and_an_op_with_an_op():
    names = set(RIVALS) | {rival for rivals in RIVALS.values() for rival in rivals}
    times = {name: Samples(np.array([1.0])) for name in names}
    times |= {"fused": Samples(np.array([0.5])), "in_line": Samples(np.array([0.8]))}
    ratios = ratios_of(times)
    assert ratios["fused"]["embedding_bag"]["median"] == ratios["fused"]["tbe"]["median"] == 2
    assert ratios["fused"]["stock_ebc"] == ratios["in_line"]["stock_ebc"]
    assert ratios["in_line"]["stock_ebc"]["median"] == 1.25


def test_the_grid_resumes_where_it_stopped_and_counts_two_losses_of_three(tmp_path, monkeypatch):
    monkeypatch.setattr(lookup_grid, "DIMS", (64,))
    monkeypatch.setattr(lookup_grid, "POOLINGS", (30,))
    monkeypatch.setattr(lookup_grid, "BATCHES", (64, 512))
    monkeypatch.setattr(lookup_grid, "THREADS", (1,))
    monkeypatch.setattr(lookup_grid, "SAVED", (0.13, 0.4))
    forwards = iter([1.1, 0.9, 0.96, 1.0, 0.9, 1.2, 1.2])  # cells 1 | 2 (loses) | 3 (does not)
    measured = []

    def measure(cell):
        measured.append(cell)
        if len(measured) == 8:
            raise KeyboardInterrupt
        ratio = {"stock_ebc": {"median": next(forwards, 1.3)}}
        return {"mode": "fused", "ratios": {"forward": ratio, "in_line": ratio, "ahead": ratio}}

    out = tmp_path / "grid.jsonl"
    with pytest.raises(KeyboardInterrupt):
        lookup_grid.run_grid(measure, (), out)
    with out.open("a") as file:
        file.write('{"cell": {"dim": 6')  # the process ended in the middle of a line
    result = lookup_grid.run_grid(measure, (), out)
    assert len(measured) == 9
    assert (result["cells"], result["losing"]) == (4, 1)
    assert "saved=0.4" in result["losing_cells"][0]
