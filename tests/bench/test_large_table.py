"""The case large_table: the plan of a larger table stores the same sums."""

import json

from click.testing import CliRunner

from bench.cases.large_table import command


def run(*arguments):
    return CliRunner().invoke(command, ["--items", "300", "--bags", "400", *arguments])


def test_rows_that_nobody_asks_for_change_no_sum():
    done = run("--rows", "300,30000", "--json")
    assert done.exit_code == 0, done.output
    small, large = json.loads(done.stdout)["sizes"]
    assert (small["rows"], large["rows"]) == (300, 30_000)
    assert small["sums"] == large["sums"] > 0
    assert 0 < large["cut"] <= small["cut"]  # how many partners are kept goes by the rows


def test_a_table_without_room_for_the_items_is_refused():
    done = run("--rows", "299")
    assert done.exit_code == 2
    assert "fewer rows than --items 300" in done.output
