"""placement: figures are the slower of two memories, and rivals are judged like ours."""

from pathlib import Path

import numpy as np
import pytest

from bench.cases.placement import ENTRANTS, placement
from bench.placement_entrants import nothing, units_of
from bench.placement_grid import BETAS, CAPACITIES, as_markdown, over_best, run_grid
from bench.stored import Stored
from bench.two_memories import BATCH, Served, figures, serve, served
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


@pytest.fixture(scope="module")
def split():
    return split_bags(generate(400, 1500, pooling=(5, 20)))


def test_time_is_the_slower_memory_and_all_rows_in_hbm_are_one(split):
    rows = split.test.num_items
    everything = served("all", split, Stored.nothing(), np.ones(rows, bool))
    found = figures([everything], [split], 0.1)
    assert (found.throughput, found.slow_share, found.imbalance, found.p95_batch) == (1, 0, 1, 1)
    nowhere = served("none", split, Stored.nothing(), np.zeros(rows, bool))
    assert np.isclose(figures([nowhere], [split], 0.1).throughput, 0.1)


def test_reads_of_a_batch_are_those_of_its_bags():
    trace = Trace.from_bags([[0, 1]] * (BATCH + 1))
    part = Served("", 1, trace.offsets_B1, trace.ids_L == 0)
    assert part.by_batch().tolist() == [[BATCH, 1], [BATCH, 1]]


def test_hot_rows_gain_what_host_memory_adds_where_bags_are_alike(split):
    (table,) = serve([split], [nothing(split)], split.test.num_items, 0.1)
    found = figures([table], [split], 0.1)
    assert 1.04 <= found.throughput <= 1.1 + 1e-9
    assert table.rows_in_hbm <= split.test.num_items


def test_no_entrant_holds_more_rows_than_fit(split):
    result = placement([split], 0.1, 0.5, 0, ("none", "fae", "space", "grace", "ours"))
    assert all(rows <= result["capacity_rows"] + 1 for rows in result["hbm_rows"].values())
    bound = result["throughput"]["any_pair_bound"]
    assert all(0 < one <= bound for one in result["throughput"].values())


def test_tables_of_one_model_share_the_rows(split):
    both = placement([split, split], 0.1, 1.0, 0, ("none", "fae"))
    assert both["capacity_rows"] == 2 * split.test.num_items
    assert both["throughput"]["none"] == 1
    assert both["throughput"]["fae"] > 1


def test_rows_of_a_cluster_are_one_unit():
    sums = StoredSums.from_clusters(5, np.array([0, 2, 5]), np.array([3, 0, 4, 1, 2]))
    units = units_of(sums)
    assert units[3] == units[0] == units[5]
    assert units[4] == units[1] == units[2] == units[6] == units[9]
    assert len(set(units.tolist())) == 2


BARS = {"ml1m": 1.60, "retail": 1.36, "gowalla_full": 1.20, "tafeng_users": 1.25, "steam200k": 1.75}
TRACES = (*BARS, "ml100k", "gowalla_poi", "tafeng_baskets", "citeulike_a", "youshu_bundles")


@pytest.mark.soak
@pytest.mark.parametrize("name", TRACES)
def test_ours_and_hot_rows_reach_their_bars_on_held_out_bags(trace_path, name):
    whole = split_bags(read_npz(trace_path(name)), 0)
    found = placement([whole], 0.1, 1.0, 0, ("none", "fae", "grace", "ours"))["throughput"]
    assert found["fae"] >= 1.05
    assert found["ours"] >= BARS.get(name, 1.0)
    assert found["ours"] >= 0.95 * max(found["none"], found["fae"], found["grace"])


def test_a_grid_goes_on_where_it_stopped_and_prints_losses_like_wins(tmp_path):
    measured = []

    def measure(cell):
        measured.append(cell)
        ours = 1.2 if cell["beta"] < 0.1 else 0.9
        throughput = {"none": 1.0, "grace": 1.0, "ours": ours, "any_pair_bound": 2.0}
        return {"throughput": throughput, "imbalance": {"ours": 0.1}}

    traces, asked = [tmp_path / "a.npz", tmp_path / "b.npz"], ("none", "grace", "ours")
    out = tmp_path / "cells" / "grid.jsonl"
    first = run_grid(measure, traces, asked, out)
    assert len(measured) == len(first["cells"]) == 3 * len(BETAS) * len(CAPACITIES)
    out.write_text(out.read_text() + '{"cut off')
    assert run_grid(measure, traces, asked, out) == first
    assert len(measured) == len(first["cells"])
    text = as_markdown(first["cells"])
    assert text.count("Ours below the best in 0 of 3 models, least 1.20") == 2 * len(CAPACITIES)
    assert text.count("Ours below the best in 3 of 3 models, least 0.90") == 3 * len(CAPACITIES)
    assert "| the first 2, a to b | 1.00 | 1.00 | 0.90 | 2.00 | 0.90 | 10% |" in text


@pytest.mark.parametrize("best", ["none", "fae", "lru", "space", "community", "merci", "grace"])
def test_the_best_is_the_best_of_all_rivals_that_were_run(best):
    throughput = dict.fromkeys(ENTRANTS, 1.0) | {best: 1.5, "ours": 1.2, "any_pair_bound": 2.0}
    entry = {"cell": {"entrants": list(ENTRANTS)}, "throughput": throughput}
    assert over_best(entry) == pytest.approx(0.8)


def test_the_page_of_placement_shows_the_summary_of_all_cells():
    docs = Path(__file__).parents[2] / "docs"
    cells = (docs / "placement_cells.md").read_text(encoding="utf-8")
    table = cells.split("## Summary\n\n", 1)[1].split("\n\n", 1)[0]
    assert table.startswith("| capacity |")
    assert table in (docs / "placement.md").read_text(encoding="utf-8")
