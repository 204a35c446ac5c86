"""The serving case checks what it times: loaded and rebuilt models answer bit for bit."""

import json

import pytest
from click.testing import CliRunner

from bench.run import cli


@pytest.mark.soak
def test_it_reports_ratios_files_and_deltas():
    arguments = [
        "serving",
        "--items",
        "500",
        "--users",
        "2560",
        "--dim",
        "8",
        "--deltas",
        "3",
        "--json",
    ]
    done = CliRunner().invoke(cli, arguments)
    assert done.exception is None, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["row_dtype"] for row in found["errors"]] == ["fp16", "int8", "int4"]
    assert all(row["rms_over_stock"] <= 1.05 for row in found["errors"])
    assert [row["row_dtype"] for row in found["files"]] == ["table", "int8"]
    assert [(row["slots"], row["deltas"]) for row in found["deltas"]] == [(1, 3), (2, 3)]
