"""``grace-torchrec demo``: the whole job, as a user runs it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grace_torchrec import artifact
from grace_torchrec.cli.demo import demo
from grace_torchrec.plans.plan import Plan
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

CONTRACT = {
    "trace", "tables", "cut", "extra_rows", "extra_bytes", "build_s", "measured", "modelled",
    "max_abs_error", "max_rel_error",
}  # fmt: skip
HISTORY = "sparse_arch.embedding_bag_collection.t_history"
CANDIDATE = "sparse_arch.embedding_bag_collection.t_candidate"


def write(trace: Trace, path):
    np.savez(path, indptr=trace.offsets_B1, indices=trace.ids_L, num_rows=trace.num_items)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write(generate(600, 700, seed=1), tmp_path_factory.mktemp("trace") / "small.npz")


def run(*args):
    return CliRunner().invoke(demo, [str(arg) for arg in args])


def test_json_has_every_field_of_the_contract_and_is_one_object(small, tmp_path):
    result = run("--trace", small, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(document) >= CONTRACT
    assert set(document["measured"]) >= {"latency_ratio", "spread", "lookup"}
    assert document["modelled"]["machine"] == "a40"
    assert document["tables"][HISTORY]["verdict"] == "use"
    assert document["tables"][CANDIDATE]["verdict"] == "leave stock"
    assert "cannot share a sum" in document["tables"][CANDIDATE]["reason"]
    assert 0 < document["cut"] < 0.5
    assert document["max_rel_error"] <= 1e-5
    assert document["tables"][HISTORY]["extra_bytes"] >= document["extra_rows"] * 512
    cuts = document["tables"][HISTORY]["validation_cut"]
    assert 0 < cuts["in_line"] <= cuts["ahead"] < 0.5
    assert document["tables"][CANDIDATE]["validation_cut"] == {"in_line": None, "ahead": None}
    assert 0 < document["tables"][HISTORY]["sums_for_95pct"] <= document["extra_rows"]


def test_the_plan_that_was_applied_is_on_disk_and_loads(small, tmp_path):
    run("--trace", small, "--out", tmp_path / "out", "--json")
    plan = Plan.load(tmp_path / "out" / "plan")
    assert list(plan.tables) == [HISTORY, CANDIDATE]


def test_it_ends_with_a_report_that_moves_rows(small, tmp_path):
    out = tmp_path / "out"
    printed = run("--trace", small, "--out", out, "--memory", "gh200", "--hbm-bytes", 200_000)
    assert (
        printed.stdout.splitlines()[-1] == f"report: {out / 'report.html'} (open it in a browser)"
    )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "t_history" in page
    assert 'id="size"' in page  # HBM sizes: the bags of the saved profile were placed anew
    document = json.loads(run("--trace", small, "--out", out, "--json").stdout)
    assert document["report"] == str(out / "report.html")
    assert json.loads((out / "demo.json").read_text(encoding="utf-8")) == document
    assert {path.name for path in out.iterdir()} == {"demo.json", *artifact.BESIDE["demo"]}
    assert (
        Profile.load(document["profile"]).fingerprint()
        == Plan.load(document["plan"]).profile_fingerprint
    )


def test_the_training_steps_are_in_the_event_file(small, tmp_path):
    document = json.loads(run("--trace", small, "--out", tmp_path / "out", "--json").stdout)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss/total")]
    assert len(losses) >= 2
    assert losses[0] == pytest.approx(document["losses"][0])
    assert losses[-1] == pytest.approx(document["losses"][1])


def test_a_trace_that_gains_nothing_is_a_finished_job(tmp_path):
    """Ids drawn apart from each other: no group recurs."""
    rng = np.random.default_rng(0)
    bags = Trace(np.arange(0, 4001, 4), rng.integers(0, 3000, 4000), 3000)
    trace = write(bags, tmp_path / "uniform.npz")
    result = run("--trace", trace, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {table["verdict"] for table in document["tables"].values()} == {"leave stock"}
    assert document["measured"] is None
    assert document["cut"] == 0
    assert document["modelled"]["time_ratio"] == 1


def test_the_table_keeps_measured_and_modelled_apart(small, tmp_path):
    printed = run("--trace", small, "--out", tmp_path / "out").stdout
    assert "measured here" in printed
    assert "plan for a40 (modelled" in printed
    assert "outputs: equal to the stock model within rounding" in printed
    assert "\u2026" not in printed  # no number is cut short
    assert "leave stock, because" in printed
    words = " ".join(printed.split())  # lines may break anywhere
    assert " rewritten in line, " in words
    assert " rewritten ahead; stored by " in words
    assert "of its sums take 95 % of their reads" in printed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--memory", "abacus"), "abacus"),
        (("--budget", "-1"), "budget"),
        (("--trace", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_wrong_calls_say_what_and_write_nothing(tmp_path, args, words):
    result = run(*args, "--out", tmp_path / "out")
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)
    assert not (tmp_path / "out").exists()


def test_too_few_bags_to_hold_any_out(tmp_path):
    trace = write(Trace.from_bags([[0, 1], [1, 2]]), tmp_path / "two.npz")
    result = run("--trace", trace, "--out", tmp_path / "out")
    assert "bags" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_names_of_a_job_that_failed_are_not_kept(tmp_path):
    """The next job would read them as given ones."""
    (tmp_path / "two.dat").write_text("milk bread\nbread\n")
    names = tmp_path / "names.txt"
    args = ("--format", "baskets", "--remap", names, "--out", tmp_path / "out")
    result = run("--trace", tmp_path / "two.dat", *args)
    assert "bags" in str(result.exception)
    assert not names.exists()


@pytest.mark.parametrize("name", ["ml100k", "steam200k", "citeulike_a"])
def test_the_cut_that_is_served_is_the_cut_of_the_bench(trace_path, tmp_path, name):
    from bench.cases.traffic import traffic
    from grace_sharding.memory_tiers import MemoryModel
    from grace_torchrec.demo.job import run as run_demo
    from grace_torchrec.plans.plan import PlanOptions
    from grace_torchrec.traces.readers import read
    from grace_torchrec.traces.split import split_bags

    trace = read(trace_path(name))
    options = PlanOptions(methods=("grace",))
    document = run_demo(trace, name, MemoryModel.named("a40"), tmp_path / "out", options).document()
    figure = traffic(split_bags(trace), "grace", 1.0, 0, 256, None)
    assert document["tables"][HISTORY]["rows_read"] == figure["rows_after"]
    assert document["tables"][HISTORY]["picked"] == f"grace {figure['picked']}"
    assert document["cut"] == figure["cut"]
