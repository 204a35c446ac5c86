"""The verbs in the order a user calls them: profile, plan, accelerate_, verify, restore_."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)

import grace_torchrec as grace
from bench.cases.traffic import traffic
from grace_torchrec.arguments import expect_batches
from grace_torchrec.demo.batches import history_batches
from grace_torchrec.errors import GraceError
from grace_torchrec.models.dlrm import history_dlrm
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate

NUM_ITEMS = 600
MEMORY = grace.MemoryModel.named("a40")


@pytest.fixture(scope="module")
def split():
    return split_bags(generate(NUM_ITEMS, 1500, 0))


def inputs(trace):
    return [batch.inputs for batch in history_batches(trace, 256)]


def outside(batches):
    """The bags of the first batch with an id that no table has."""
    bags = next(part for part in batches[0] if isinstance(part, KeyedJaggedTensor))
    ids = bags.values().clone()
    ids[0] = 99_999
    return KeyedJaggedTensor(keys=bags.keys(), values=ids, lengths=bags.lengths())


@pytest.fixture(scope="module")
def untrained(split):
    torch.manual_seed(0)
    return history_dlrm(split.train.num_items, 64).eval()


@pytest.fixture(scope="module")
def profile(untrained, split):
    return grace.profile(inputs(split.train), untrained)


@pytest.fixture(scope="module")
def plan(untrained, profile):
    return grace.plan(untrained, profile, MEMORY, in_order=True)


@pytest.fixture
def model(untrained):
    return copy.deepcopy(untrained)


def logits(model, split):
    with torch.no_grad():
        return torch.cat([model(*batch) for batch in inputs(split.test)])


def test_the_whole_job_changes_nothing_but_the_reads(model, split, plan, tmp_path) -> None:
    before, keys = logits(model, split), list(model.state_dict())
    plan.save(tmp_path / "plan")
    loaded = grace.Plan.load(tmp_path / "plan")
    assert plan_fingerprint(loaded) == plan_fingerprint(plan)
    swapped = grace.accelerate_(model, loaded)
    assert isinstance(swapped, grace.Swapped)
    path = "sparse_arch.embedding_bag_collection"
    assert swapped.modules == {path: ("t_history",)}
    assert f"{path}.t_candidate" in swapped.refused
    assert isinstance(model.get_submodule(path), grace.GraceEmbeddingBagCollection)
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(logits(model, split), before, rtol=1e-5, atol=1e-6)
    proof = grace.verify(model, inputs(split.test))
    assert proof.equal
    assert proof.tables[0].cut > 0.1
    assert proof.tables[1].cut == 0
    grace.restore_(model, swapped)
    assert torch.equal(logits(model, split), before)


def test_trained_weights_arrive_and_the_sums_follow(model, split, plan) -> None:
    swapped = grace.accelerate_(model, plan)
    weight = model.sparse_arch.embedding_bag_collection.embedding_bags["t_history"].weight
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(grace.StaleSums, match="t_history"):
        logits(model, split)
    assert not grace.verify(model, inputs(split.test)).equal
    assert grace.rebuild_sums_(model) > 0
    proof = grace.verify(model, inputs(split.test))
    assert proof.equal
    accelerated = logits(model, split)
    grace.restore_(model, swapped)
    torch.testing.assert_close(logits(model, split), accelerated, rtol=1e-5, atol=1e-6)


def test_the_swap_tells_of_tables_and_filters(model, plan) -> None:
    with pytest.raises(grace.GraceError, match="no table 't_none'"):
        grace.accelerate_(model, plan, tables=["t_none"])
    assert grace.accelerate_(model, plan, tables=["t_candidate"]).modules == {}
    assert grace.accelerate_(model, plan, filter_fn=lambda module, path: False).modules == {}
    with pytest.raises(grace.NotSupported, match="training mode"):
        grace.accelerate_(model.train(), plan)


def test_strict_refuses_weights_that_would_be_ignored(model, plan) -> None:
    grace.accelerate_(model, plan, strict=True)
    weighted = KeyedJaggedTensor(
        keys=["history", "candidate"],
        values=torch.tensor([1, 2]),
        lengths=torch.tensor([1, 1]),
        weights=torch.tensor([1.0, 2.0]),
    )
    with pytest.raises(grace.NotSupported, match="ignored"):
        model.sparse_arch.embedding_bag_collection(weighted)


def test_progress_is_told_line_by_line(untrained, profile) -> None:
    lines = []
    grace.plan(untrained, profile, MEMORY, progress=lines.append)
    assert len(lines) == 3
    assert "t_history" in lines[0]


def test_equal_calls_make_equal_plans(untrained, split, plan) -> None:
    again = grace.plan(
        untrained, grace.profile(inputs(split.train), untrained), MEMORY, in_order=True
    )
    assert plan_fingerprint(again) == plan_fingerprint(plan)


def test_a_plan_reads_what_the_bench_counts(trace_path) -> None:
    split = split_bags(read_npz(trace_path("ml100k")))
    model = history_dlrm(split.train.num_items, 64).eval()
    profile = grace.profile(inputs(split.train), model)
    options = grace.PlanOptions(methods=("grace",))
    grace.accelerate_(model, grace.plan(model, profile, MEMORY, options, in_order=True))
    table = grace.verify(model, inputs(split.test)).tables[0]
    told = traffic(split, "grace", 1.0, 0, 256, None)
    assert (table.ids, table.rows_read) == (told["rows_before"], told["rows_after"])


# profile


def collection(*tables, **options):
    configs = [
        EmbeddingBagConfig(name=n, embedding_dim=4, num_embeddings=20, feature_names=list(f))
        for n, f in tables
    ]
    return EmbeddingBagCollection(tables=configs, **options).eval()


def batch(weights=None, **bags):
    every = [bag for feature in bags.values() for bag in feature]
    return KeyedJaggedTensor(
        keys=list(bags),
        values=torch.tensor([i for bag in every for i in bag]),
        lengths=torch.tensor([len(bag) for bag in every]),
        weights=weights,
    )


def test_a_profile_holds_the_bags_of_every_feature_of_a_table() -> None:
    model = nn.Sequential(collection(("t_a", "ab"), ("t_c", "c"), ("t_none", "z")))
    bags = batch(a=[[1, 2], [3]], b=[[], [4]], c=[[-1, 7], [5, 5]])
    with pytest.warns(UserWarning, match=r"not recorded.*: t_none \(z\); a table"):
        profile = grace.profile([bags, (torch.ones(2), bags)], model)
    assert set(profile.tables) == {"t_a", "t_c"}
    assert profile.tables["t_a"].features == ("a", "b")
    held = profile.tables["t_a"].trace
    once = [[1, 2], [3], [], [4]]
    assert [part.tolist() for part in np.split(held.ids_L, held.offsets_B1[1:-1])] == 2 * once
    assert profile.tables["t_c"].counts_N[[5, 7]].tolist() == [4, 2]  # padding is no item


def test_a_profile_holds_the_bags_of_several_arguments() -> None:
    model = nn.Sequential(
        collection(("t_a", "a")), collection(("t_b", "b"), ("t_c", "c"), is_weighted=True)
    )
    both = batch(a=[[1, 2]]), batch(torch.tensor([0.5, 2.0]), b=[[3]], c=[[4]])
    profile = grace.profile([(torch.ones(1), *both)] * 2, model)
    found = {name: table.trace.ids_L.tolist() for name, table in profile.tables.items()}
    assert found == {"t_a": [1, 2, 1, 2], "t_b": [3, 3], "t_c": [4, 4]}
    alone = grace.profile([both[1]] * 2, model)
    assert alone.tables["t_b"].fingerprint() == profile.tables["t_b"].fingerprint()
    with pytest.raises(grace.GraceError, match="feature 'a' is in two KeyedJaggedTensors"):
        grace.profile([(batch(a=[[1]]), batch(a=[[1]]))], model)
    split = nn.Sequential(collection(("t_ab", "ab")))
    with pytest.raises(grace.GraceError, match="'t_ab' reads features of 2 KeyedJaggedTensors"):
        grace.profile([(batch(a=[[1]]), batch(b=[[1]]))], split)


@pytest.mark.filterwarnings("error")
def test_features_that_no_batch_has_are_told_and_nothing_else_is() -> None:
    model = nn.Sequential(collection(("t_a", "ab")))
    with pytest.warns(UserWarning, match=r"no batch has the feature: t_a \(b\); a table"):
        profile = grace.profile([batch(a=[[1]])], model)
    assert profile.tables["t_a"].features == ("a",)
    assert grace.profile([batch(a=[[1]], b=[[2]])], model).tables["t_a"].features == ("a", "b")


def test_batches_may_be_a_generator() -> None:
    model = nn.Sequential(collection(("t_a", "a")))
    profile = grace.profile((batch(a=[[i]]) for i in range(3)), model)
    assert profile.tables["t_a"].trace.ids_L.tolist() == [0, 1, 2]


def test_profiles_of_nothing_are_refused() -> None:
    model = nn.Sequential(collection(("t_a", "a")))
    with pytest.raises(grace.GraceError, match="no batches"):
        grace.profile([], model)
    with pytest.raises(grace.GraceError, match=r"\['x'\].*read \['a'\]"):
        grace.profile([batch(x=[[1]])], model)
    with pytest.raises(grace.NotSupported, match="no stock EmbeddingBagCollection"):
        grace.profile([batch(a=[[1]])], nn.Linear(1, 1))
    config = EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["a"])
    with pytest.raises(grace.NotSupported, match="no stock EmbeddingBagCollection"):
        grace.profile([batch(a=[[1]])], nn.Sequential(EmbeddingCollection(tables=[config])))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ((torch.ones(2), 3), "holds 0 KeyedJaggedTensors"),
        (torch.ones(2), "holds 0"),
        ((batch(a=[[1]]), batch(a=[[1]])), "holds 2"),
        (batch(a=[[99]]), "99"),
        (batch(a=[[-5]]), "-5"),
    ],
    ids=["no-bags", "tensor", "two", "outside", "negative"],
)
def test_batches_that_cannot_be_profiled_are_refused(wrong, told) -> None:
    model = nn.Sequential(collection(("t_a", "a")))
    with pytest.raises(grace.GraceError, match=told):
        grace.profile([batch(a=[[1]]), wrong], model)


def test_two_tables_of_one_name_are_refused() -> None:
    model = nn.ModuleList([collection(("t_a", "a")), collection(("t_a", "b"))])
    with pytest.raises(grace.NotSupported, match="rename one"):
        grace.profile([batch(a=[[1]])], model)


def test_a_profile_of_another_model_is_refused(profile) -> None:
    with pytest.raises(grace.PlanMismatch, match="t_history"):
        grace.plan(nn.Sequential(collection(("t_a", "a"))), profile, MEMORY)


def test_a_model_that_fits_nowhere_has_no_plan(untrained, profile) -> None:
    small = grace.MemoryModel.named("a40", hbm_bytes=1000, host_bytes=1000)
    with pytest.raises(grace.NoPlan, match="t_"):
        grace.plan(untrained, profile, small)


def test_a_stock_model_has_nothing_to_rebuild_verify_or_restore(model, plan, split) -> None:
    with pytest.raises(grace.GraceError, match="no swapped module"):
        grace.rebuild_sums_(model)
    with pytest.raises(grace.GraceError, match="no swapped module"):
        grace.verify(model, inputs(split.test))
    swapped = grace.accelerate_(copy.deepcopy(model), plan)
    with pytest.raises(grace.PlanMismatch, match="holds no swapped module"):
        grace.restore_(model, swapped)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, p, b: grace.profile(b, None), "profile: model is None; an nn.Module is expected"),
        (lambda m, p, b: grace.profile(m, b), "profile: model is a list; an nn.Module"),
        (lambda m, p, b: grace.profile(None, m), "profile: batches is None; a list or"),
        (lambda m, p, b: grace.profile(b[0][1], m), "profile: batches is one KeyedJaggedTensor"),
        (lambda m, p, b: grace.plan(p, m, MEMORY), "plan: model is a Profile; an nn.Module"),
        (lambda m, p, b: grace.plan(m, None, MEMORY), "plan: profile is None; a Profile is"),
        (lambda m, p, b: grace.plan(nn.Linear(1, 1), p, MEMORY), "plan: model holds no stock Embed"),
        (lambda m, p, b: grace.accelerate_(m, "plan"), "accelerate_: plan is a str; a Plan is"),
        (lambda m, p, b: grace.verify(m, b[0][1]), "verify: batches is one KeyedJaggedTensor"),
        (lambda m, p, b: grace.rewrite(b, None), "rewrite: model is None; an nn.Module"),
        (lambda m, p, b: grace.rebuild_sums_(3), "rebuild_sums_: model is an int; an nn.Module"),
        (lambda m, p, b: grace.restore_(None, None), "restore_: model is None; an nn.Module"),
        (lambda m, p, b: grace.profile([3], m), "profile: batch 0 holds 0 KeyedJaggedTensors"),
        (lambda m, p, b: grace.profile([], m), "profile: no batches were given; give one"),
        (lambda m, p, b: grace.profile([outside(b)], m), "profile: table 't_history': batch 0: feature 'history': sample 0 holds id 99999, the table has 600 rows; fix"),
        (lambda m, p, b: grace.plan(m, p, MEMORY, world_size=2, constraints=3), "plan: constraints is an int"),
        (lambda m, p, b: grace.convert(3, None, example=b[0]), "convert: model is an int; an nn.Module"),
        (lambda m, p, b: grace.convert(m, p, example=b[0]), "convert: plan is a Profile; a Plan is"),
        (lambda m, p, b: grace.load_served("x", 3, example=b[0]), "load_served: model is an int"),
        (lambda m, p, b: grace.schedule_(3, b[0]), "schedule_: model is an int; an nn.Module"),
        (lambda m, p, b: grace.schedule_(m, 3), "schedule_: example is an int; a tuple is"),
        (lambda m, p, b: grace.schedule_(m, b[0], "2"), "schedule_: streams must be an integer of 1"),
        (lambda m, p, b: grace.schedule_(m, b[0], queries=1.5), "schedule_: queries must be an integer"),
        (lambda m, p, b: grace.schedule_(m, b[0], wait_us=float("inf")), "schedule_: wait_us must be a"),
        (lambda m, p, b: grace.Engine(m, max_batch="2"), "Engine: max_batch must be an integer of 1"),
        (lambda m, p, b: grace.Engine(m, shadow=float("nan")), "Engine: shadow (a share of requests)"),
        (lambda m, p, b: grace.calibrate("2"), "calibrate: row_bytes must be a multiple of 4 from 4"),
        (lambda m, p, b: grace.GraceEmbeddingBagCollection(3, {}), "GraceEmbeddingBagCollection: coll"),
        (lambda m, p, b: grace.Profile.from_trace("t", 3), "Profile.from_trace: trace is an int; a Tr"),
        (lambda m, p, b: grace.Trace.from_bags([[1.5]]), "trace: 1.5 is no id; bags hold integers"),
        (lambda m, p, b: grace.Trace.from_bags([["7"]]), "trace: '7' is no id; bags hold integers"),
        (lambda m, p, b: grace.Trace([0, 1], [0], 1.5), "trace: num_items is 1.5; give the rows"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_is_expected(model, profile, split, call, said):
    with pytest.raises(GraceError) as caught:
        call(model, profile, inputs(split.test))
    assert str(caught.value).startswith(said)


def test_a_proof_that_failed_is_false(model, plan, split):
    grace.accelerate_(model, plan)
    assert grace.verify(model, inputs(split.test))
    with torch.no_grad():
        history = next(p for name, p in model.named_parameters() if "t_history" in name)
        history.add_(1)
    assert not grace.verify(model, inputs(split.test))


def test_one_batch_is_not_taken_for_many():
    bags = KeyedJaggedTensor.from_lengths_sync(["item"], torch.arange(2), torch.tensor([1, 1]))
    with pytest.raises(GraceError, match="batches is one batch; pass a list of batches"):
        expect_batches("profile", (torch.zeros(2, 3), bags))
    for batches in ([(torch.zeros(2, 3), bags)], [bags, bags], [bags, (torch.zeros(1), bags)]):
        expect_batches("profile", batches)
