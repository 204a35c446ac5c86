"""traffic: the figures stand on dumps that an independent check accepts."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from bench.cases.traffic import BOUNDS, METHODS, bags_seen, command, given_split, traffic
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

FIELDS = {
    "cut", "rows_before", "rows_after", "extra_rows", "extra_bytes", "metadata_bytes", "build_s",
    "picked", "select_s", "sums_for_95pct", "test_bags_seen_in_train",
}  # fmt: skip
REFERENCE = {"ml100k": 0.401, "retail": 0.104, "steam200k": 0.323, "citeulike_a": 0.156}
ALL_TRACES = [
    *REFERENCE, "ml1m", "gowalla_full", "gowalla_poi", "tafeng_users", "tafeng_baskets", "youshu_bundles",
]  # fmt: skip


def bags_of(trace):
    return np.split(trace.ids_L, trace.offsets_B1[1:-1])


def run(*arguments):
    """One JSON object on the last line of stdout."""
    result = CliRunner().invoke(command, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def small(tmp_path):
    """A file with 300 bags over 600 items, some rows of the table never requested."""
    trace = generate(590, 300, 3)
    np.savez(tmp_path / "small.npz", indptr=trace.offsets_B1, indices=trace.ids_L, num_rows=600)
    return tmp_path / "small.npz"


@pytest.mark.parametrize("name", REFERENCE)
def test_grace_cuts_what_the_reference_cut(trace_path, name, tmp_path, exact_cut):
    split = split_bags(read_npz(trace_path(name)), 0)
    result = traffic(split, "grace", 1.0, 0, 256, tmp_path)
    assert result["cut"] >= REFERENCE[name] - 0.005
    assert result["cut"] == exact_cut(
        tmp_path, bags_of(split.test), split.test.num_items, split.test.num_items
    )


def test_what_auto_picked_is_told_and_timed(small):
    result = run("--trace", small, "--method", "auto", "--objective", "cut")
    assert result["picked"].split()[0] in METHODS
    assert result["select_s"] > 0
    assert result["build_s"] > 0
    floor = run("--trace", small, "--method", "grace_floor")
    assert floor["picked"].startswith("floor=")


@pytest.mark.soak
def test_grace_cuts_a_third_of_the_dense_trace(trace_path):
    split = split_bags(read_npz(trace_path("ml1m")), 0)
    assert traffic(split, "grace", 1.0, 0, 256, None)["cut"] >= 0.36


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ALL_TRACES)
def test_every_dump_is_exact(trace_path, name, method, tmp_path, exact_cut):
    split = split_bags(read_npz(trace_path(name)), 0)
    num_items = split.test.num_items
    result = traffic(split, method, 1.0, 0, 256, tmp_path)
    assert result["cut"] == exact_cut(tmp_path, bags_of(split.test), num_items, num_items)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [0, 0.1, 1.0])
def test_the_json_figures_are_those_of_the_dump(small, tmp_path, exact_cut, method, budget):
    folder = tmp_path / "dump"
    result = run("--trace", small, "--method", method, "--budget", budget, "--dump", folder)
    split = split_bags(read_npz(small), 0)
    assert set(result) >= FIELDS
    assert result["rows_before"] == split.test.num_ids
    assert result["cut"] == 1 - result["rows_after"] / result["rows_before"]
    assert result["cut"] == exact_cut(folder, bags_of(split.test), 600, int(budget * 600))
    with np.load(folder / "stored_rows.npz") as file:
        assert result["extra_rows"] == file["indptr"].size - 1
    assert result["extra_bytes"] == 256 * result["extra_rows"] + result["metadata_bytes"]
    if method in ("none", "fae", "lru") or not budget:
        assert (result["cut"], result["extra_rows"]) == (0, 0)
    elif budget == 1:
        assert 0 < result["sums_for_95pct"] <= result["extra_rows"]


def test_repeated_ids_survive_the_dump(tmp_path, exact_cut):
    rng = np.random.default_rng(0)
    trace = Trace.from_bags([(20 * rng.random(12) ** 2).astype(int).tolist() for _ in range(100)])
    split = split_bags(trace)
    for method in METHODS:
        result = traffic(split, method, 3.0, 0, 256, tmp_path)
        assert result["cut"] == exact_cut(tmp_path, bags_of(split.test), 20, 60)


def test_pair_oracle_reads_half_of_every_bag_and_bounds_the_pairs_of_space(small):
    result = run("--trace", small, "--method", "pair_oracle")
    assert set(result) >= FIELDS
    split = split_bags(read_npz(small), 0)
    assert result["rows_after"] == sum(-(-len(bag) // 2) for bag in bags_of(split.test))
    assert run("--trace", small, "--method", "space")["cut"] <= result["cut"]


def test_the_split_files_give_the_figures_of_the_whole_file(small, tmp_path):
    split = split_bags(read_npz(small), 0)
    for name, part in (("train", split.train), ("test", split.test)):
        np.savez(tmp_path / name, indptr=part.offsets_B1, indices=part.ids_L, num_rows=600)
    files = run("--fit", tmp_path / "train.npz", "--serve", tmp_path / "test.npz")
    whole = run("--trace", small)
    timed = {"build_s", "select_s", "jit_s"}
    assert {k: v for k, v in files.items() if k not in timed} == {
        k: v for k, v in whole.items() if k not in timed
    }


def test_a_split_of_given_traces_is_over_the_larger_table():
    split = given_split(Trace.from_bags([[0, 1]] * 10), Trace.from_bags([[7]]))
    assert split.train.num_items == split.fit.num_items == split.test.num_items == 8
    assert (split.fit.num_bags, split.validation.num_bags, split.train.num_bags) == (8, 2, 10)


def test_seed_decides_the_split_and_is_repeatable(small):
    timed = ("build_s", "select_s", "jit_s")
    one, again, other = (run("--trace", small, "--seed", seed) for seed in (1, 1, 2))
    for result in (one, again, other):
        for name in timed:
            assert result.pop(name) >= 0
    assert one == again
    assert one["rows_before"] != other["rows_before"]


def test_split_by_time_holds_out_the_latest_bags(tmp_path):
    bags = [[0, 1, 2]] * 12 + [[3, 4]] * 3
    trace = Trace.from_bags(bags)
    time = np.r_[np.arange(12), [30, 20, 15]]
    np.savez(tmp_path / "t.npz", indptr=trace.offsets_B1, indices=trace.ids_L, time=time)
    late = run("--trace", tmp_path / "t.npz", "--split", "time")
    assert (late["rows_before"], late["cut"], late["test_bags_seen_in_train"]) == (6, 0, 0)


def test_generated_traces_need_no_file():
    assert run("--generate", "400,200", "--budget", 0.5)["extra_rows"] <= 200


def test_bags_seen_in_train_compare_contents_and_ignore_order():
    train = Trace.from_bags([[3, 1, 1], [2], [], [4, 5]])
    test = Trace.from_bags([[1, 3, 1], [1, 3], [2], [2, 2], [], [5, 4]])
    assert bags_seen(test, train) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of"),
        (["--trace", "a", "--generate", "3,4"], "give one of"),
        (["--fit", "a"], "belong together"),
        (["--fit", "a", "--serve", "b", "--split", "time"], "a split already"),
        (["--generate", "3"], "two whole numbers"),
        (["--generate", "300,100", "--method", "pair_oracle", "--dump", "d"], "is a bound"),
        (["--generate", "300,100", "--budget", "-1"], "range"),
        (["--generate", "300,100", "--method", "auto", "--objective", "time"], "leave it out"),
    ],
)
def test_wrong_calls_exit_with_2_and_say_why(arguments, message):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_dump_is_not_mixed_with_other_archives(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(1))
    result = CliRunner().invoke(command, ["--generate", "300,100", "--dump", str(tmp_path)])
    assert isinstance(result.exception, GraceError)
    assert "other.npz" in str(result.exception)


def test_only_methods_that_are_built_are_offered():
    offered = next(option for option in command.params if option.name == "method").type.choices
    assert (
        set(offered)
        == set(METHODS) | set(BOUNDS)
        == {
            "auto_in_line",
            "none",
            "fae",
            "lru",
            "space",
            "community",
            "merci",
            "grace",
            "grace_floor",
            "subsets",
            "set_merge",
            "auto",
            "pair_oracle",
        }
    )
