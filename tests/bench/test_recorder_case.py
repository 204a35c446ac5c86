"""bench recorder: it tells a ratio with its interval, and what the recorder holds."""

import json

from click.testing import CliRunner

from bench.cases.recorder import command


def test_it_reports_a_ratio_and_its_interval() -> None:
    small = ("--batch", "4", "--seen", "30", "--rounds", "3", "--each", "2", "--max-bags", "50")
    result = CliRunner().invoke(command, [*small, "--json"], catch_exceptions=False)
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["bags_seen"] == 30 * 4 * 9
    assert found["bags_held"] == 50 * 9
    assert 0 < found["interval"][0] <= found["ratio"]["median"] <= found["interval"][1]
    assert found["bytes_held"] < found["max_bytes"]
    assert found["batches_dropped"] == 0
    assert found["batches_passed"] < found["batches"]
    assert 0 < found["share_of_time"] < 1
