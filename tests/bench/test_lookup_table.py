"""lookup_table: a range over runs, the spread of their rounds, and which were of a busy machine."""

import json

from click.testing import CliRunner

from bench.run import cli


def run_of(dim, in_line, load=0.0, **more):
    spread = {"p10": in_line - 0.1, "median": in_line, "p90": in_line + 0.1}
    times = {"stock_ebc": 50.0, "in_line": 50.0 / in_line, **more}
    return {
        "dim": dim,
        "ns_per_id": {name: {"median": value} for name, value in times.items()},
        "ratios": {"in_line": {"stock_ebc": spread}},
        "machine": {"load": load, "cores": 2},
    }


def test_a_cell_is_a_range_over_all_runs_with_their_spread(tmp_path):
    file = tmp_path / "runs.jsonl"
    runs = [run_of(128, 1.25), run_of(64, 1.0), run_of(128, 1.0, load=3.0, embedding_bag=48.0)]
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    done = CliRunner().invoke(cli, ["lookup_table", str(file)], catch_exceptions=False)
    lines = done.output.splitlines()
    assert "| modules | D=64 (1 runs) | D=128 (2 runs, 1 of them busy) |" in lines
    assert (
        "| `in_line` | 50.0, 1.00x `stock_ebc` (0.90 to 1.10) "
        "| 40.0 to 50.0, 1.00 to 1.25x `stock_ebc` (0.90 to 1.35) |"
    ) in lines
    assert "| `embedding_bag` | - | 48.0 |" in lines
    assert "| `tbe` | - | - |" in lines
