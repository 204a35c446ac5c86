"""``grace-torchrec profile``: a trace file becomes a profile folder."""

import gzip
import json

from click.testing import CliRunner

from grace_torchrec.cli.profile import profile
from grace_torchrec.traces.profile import Profile


def run(*args):
    return CliRunner().invoke(profile, [str(arg) for arg in args])


def test_a_gzipped_text_trace_becomes_a_profile(tmp_path):
    trace = tmp_path / "users.txt.gz"
    trace.write_bytes(gzip.compress(b"0 3 1 2\n1 2 3\n2 5\n"))
    result = run(trace, "-o", tmp_path / "p", "--table", "t_item", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    loaded = Profile.load(tmp_path / "p")
    assert document["ids"] == loaded.tables["t_item"].trace.num_ids == 6
    assert loaded.tables["t_item"].features == ("item",)
    assert document["fingerprint"] == loaded.fingerprint()


def test_a_malformed_line_writes_nothing(tmp_path):
    trace = tmp_path / "users.txt"
    trace.write_text("0 3 1\n1 x 3\n2 1\n")
    result = run(trace, "-o", tmp_path / "p", "--format", "user_items")
    assert result.exit_code != 0
    assert "users.txt:2" in str(result.exception)
    assert not (tmp_path / "p").exists()
