"""``grace-torchrec profile``: a trace file becomes a profile folder."""

import gzip
import json

from click.testing import CliRunner

from grace_torchrec.cli.profile import profile
from grace_torchrec.cli.words import in_own_words
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


def test_items_of_any_name_become_rows_and_the_names_are_written(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("user,item\nann,B1\nbob,9000000000000000000\nann,B2\nbob,B1\n")
    result = run(log, "-o", tmp_path / "p", "--remap", tmp_path / "items.txt")
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'items.txt'}: the name of each row" in result.output
    assert (tmp_path / "items.txt").read_text() == "B1\n9000000000000000000\nB2\n"
    trace = Profile.load(tmp_path / "p").tables["t_history"].trace
    assert (trace.ids_L.tolist(), trace.num_items) == ([0, 2, 1, 0], 3)

    log.write_text("user,item\nann,B2\n")  # another day, the same table
    again = json.loads(
        run(log, "-o", tmp_path / "q", "--remap", tmp_path / "items.txt", "--json").stdout
    )
    assert again["names"] is None
    trace = Profile.load(tmp_path / "q").tables["t_history"].trace
    assert (trace.ids_L.tolist(), trace.num_items) == ([2], 3)


def test_bad_lines_are_skipped_where_that_is_asked_for(tmp_path):
    trace = tmp_path / "bags.dat"
    trace.write_text("0 3 1\n1 x 3\n2 1\n")
    result = run(trace, "-o", tmp_path / "p", "--skip-bad-lines")
    assert result.exit_code == 0, result.output
    assert f"1 bad lines skipped, the first: {trace}:2: 'x' is not an integer" in result.output
    assert Profile.load(tmp_path / "p").tables["t_history"].trace.num_bags == 2


def test_where_the_names_cannot_be_written_no_profile_is_left_without_them(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("user,item\nann,B1\n")
    result = run(log, "-o", tmp_path / "p", "--remap", tmp_path / "none" / "items.txt")
    assert result.exit_code == 2
    assert "items.txt" in result.stderr
    assert "is no folder" in result.stderr
    assert not (tmp_path / "p").exists()


def test_ids_that_are_no_numbers_of_rows_are_noted(tmp_path):
    log = tmp_path / "log.dat"
    log.write_text("1000000000000 1000000000399\n7 1000000000000\n")
    result = run(log, "-o", tmp_path / "p")
    told = "note: 3 distinct ids in a table of 1,000,000,000,400 rows: "
    assert told in result.output
    assert "number the items: --remap FILE" in result.output
    document = json.loads(run(log, "-o", tmp_path / "p", "--json").stdout)
    assert [len(document["notes"]), document["note"]] == [1, ""]
    options = ("-o", tmp_path / "q", "--remap", tmp_path / "items.txt", "--json")
    document = json.loads(run(log, *options).stdout)
    assert (document["items"], document["notes"]) == (3, [])


def test_a_log_that_is_read_as_baskets_is_told_its_options(tmp_path):
    (tmp_path / "log.csv").write_text("u0,salt,4\nu1,salt,5\n")
    args = (tmp_path / "log.csv", "--format", "baskets", "--remap", tmp_path / "names")
    result = run(*args, "-o", tmp_path / "p")
    told = in_own_words(str(result.exception))
    assert "with --format interactions and name the columns from the left: --columns" in told
    assert not (tmp_path / "names").exists()
