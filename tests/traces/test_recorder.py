"""A recorder samples whole bags of a live model, is never in the way, and lets no rare id out."""

import copy
import itertools
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.traces.live_sample import BAG_BYTES
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.recorder_files import supported
from grace_torchrec.traces.trace import Trace

BAGS = {"item": [[3, 1, 3], [], [7, 1]], "seen": [[2], [1, 2], []], "shop": [[0], [1], [1]]}


def recorder_of(model: nn.Module, **options) -> TraceRecorder:
    """A recorder that looks at every batch, unless it is told otherwise."""
    return TraceRecorder(model, **{"max_overhead": None, **options})


def model_of(is_weighted: bool = False) -> nn.Module:
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=20, embedding_dim=4, feature_names=features)
        for name, features in (("t_item", ["item", "seen"]), ("t_shop", ["shop"]))
    ]
    collection = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted)
    return nn.Sequential(collection).eval()


def batch_of(bags: dict[str, list[list[int]]], weights: list[float] | None = None):
    flat = [bag for feature in bags.values() for bag in feature]
    return KeyedJaggedTensor(
        keys=list(bags),
        values=torch.tensor([item for bag in flat for item in bag]),
        lengths=torch.tensor([len(bag) for bag in flat]),
        weights=None if weights is None else torch.as_tensor(weights),
    )


def bags_of(trace: Trace) -> list[list[int]]:
    ends = trace.offsets_B1
    return [trace.ids_L[a:b].tolist() for a, b in itertools.pairwise(ends)]


def test_two_lines_record_what_the_model_is_called_with() -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=1).attach()
    model(batch_of(BAGS))
    profile = recorder.profile()
    assert bags_of(profile.tables["t_item"].trace) == [[3, 1, 3], [7, 1], [2], [1, 2]]
    assert bags_of(profile.tables["t_shop"].trace) == [[0], [1], [1]]
    assert profile.tables["t_item"].features == ("item", "seen")
    assert profile.tables["t_item"].trace.num_items == 20
    assert recorder.stats.bags_seen == 9
    recorder.detach()
    model(batch_of(BAGS))
    assert recorder.stats.bags_seen == 9


def test_a_sample_of_everything_is_the_profile_of_the_batches() -> None:
    model, batches = model_of(), [batch_of(BAGS)]
    with recorder_of(model, min_support=1).attach() as recorder:
        model(batches[0])
    whole = grace.profile(batches, model).tables["t_shop"]
    assert recorder.profile().tables["t_shop"].fingerprint() == whole.fingerprint()


def test_an_item_of_few_bags_is_in_no_profile_and_in_no_file(tmp_path) -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=2)
    recorder.observe(batch_of(BAGS))
    wanted = [[1], [1], [2], [1, 2]]  # 3 comes twice, in one bag
    assert bags_of(recorder.profile().tables["t_item"].trace) == wanted
    recorder.save(tmp_path / "p")
    saved = grace.Profile.load(tmp_path / "p")
    assert bags_of(saved.tables["t_item"].trace) == wanted
    assert "of 3 items" not in saved.tables["t_item"].trace.note  # 3 and 7: two items
    assert "3 of 8 ids, of 2 items" in saved.tables["t_item"].trace.note
    again = TraceRecorder.resume(tmp_path / "p", model, min_support=1)
    assert bags_of(again.profile().tables["t_item"].trace) == wanted


@pytest.mark.parametrize("least", [1, 2, 5])
def test_support_is_of_bags_not_of_ids(least: int) -> None:
    rng = np.random.default_rng(0)
    trace = Trace.from_bags([rng.integers(0, 30, 6).tolist() for _ in range(20)], 40)
    left, alive = supported(trace, least)
    bags = bags_of(trace)
    popular = {i for i in range(40) if sum(i in bag for bag in bags) >= least}
    wanted = [[i for i in bag if i in popular] for bag in bags]
    assert bags_of(left) == [bag for bag in wanted if bag]
    assert alive.tolist() == [number for number, bag in enumerate(wanted) if bag]


def test_weights_are_recorded_where_the_collection_uses_them() -> None:
    weights = [float(k) for k in range(10)]
    for is_weighted in (False, True):
        model = model_of(is_weighted)
        recorder = recorder_of(model, min_support=1).attach()
        bags = {"item": [[3, 1], [7]], "seen": [[2], [1, 2]], "shop": [[0], [1, 1, 2]]}
        model(batch_of(bags, weights))
        found = recorder.profile().tables["t_shop"].trace.weights_L
        assert (found is None) != is_weighted
        if is_weighted:
            assert found.tolist() == [6.0, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e300], ids=str)
def test_a_bag_that_no_trace_holds_is_refused_and_does_not_spoil_the_sample(
    tmp_path, wrong
) -> None:
    recorder = recorder_of(model_of(is_weighted=True), min_support=1)
    weights = torch.tensor([1.0, wrong, 0.5], dtype=torch.float64)
    recorder.observe(batch_of({"shop": [[1, 2], [3]]}, weights))
    recorder.save(tmp_path / "p")
    assert bags_of(recorder.profile().tables["t_shop"].trace) == [[3]]
    assert (recorder.stats.bags_refused, recorder.stats.batches_failed) == (1, 0)
    assert "table 't_shop': a bag: weight 1 is not finite" in recorder.stats.last_error


@pytest.mark.parametrize("weights", [[1.0, 2.0], [1.0] * 4], ids=["too few", "too many"])
def test_weights_of_other_ids_are_refused(weights) -> None:
    recorder = recorder_of(model_of(is_weighted=True), min_support=1)
    recorder.observe(batch_of({"shop": [[1, 2], [3]]}, torch.tensor(weights)))
    assert recorder.profile().tables["t_shop"].trace.num_bags == 0
    assert recorder.stats.bags_refused == 2


def test_rare_items_are_found_in_the_memory_of_the_bags() -> None:
    trace = Trace.from_bags([[1, 2], [2, 3]] * 100, 50_000_000)
    tracemalloc.start()
    left, _ = supported(trace, 101)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (left.num_ids, left.num_items) == (200, 50_000_000)
    assert most < 200_000


def test_nothing_reaches_a_request() -> None:
    recorder = recorder_of(model_of(), min_support=1, max_bag_ids=3)
    recorder.observe("no batch")
    recorder.observe(None)
    torn = batch_of(BAGS)
    torn._lengths[0] = 99
    recorder.observe(torn)
    assert recorder.stats.batches_failed + recorder.stats.bags_refused > 0
    refused = recorder.stats.bags_refused
    recorder.observe(
        batch_of({"item": [[20], [-7], [1, -1, 2]], "seen": [[], [], []], "shop": [[1]] * 3})
    )
    assert recorder.stats.bags_refused == refused + 2
    assert bags_of(recorder.profile().tables["t_item"].trace)[-1] == [1, 2]  # -1 is padding
    recorder.observe(batch_of({"item": [[1, 2, 3, 4]], "seen": [[]], "shop": [[1]]}))
    assert recorder.stats.bags_too_long == 1
    assert "IndexError" not in recorder.stats.last_error


def test_a_table_is_recorded_only_if_all_its_features_are_there() -> None:
    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(batch_of({"item": [[1]], "shop": [[2]]}))
    profile = recorder.profile()
    assert profile.tables["t_item"].trace.num_bags == 0
    assert bags_of(profile.tables["t_shop"].trace) == [[2]]


def test_a_batch_that_finds_the_recorder_in_use_is_dropped_and_counted() -> None:
    recorder = recorder_of(model_of(), min_support=1)
    with recorder._one_at_a_time:
        request = threading.Thread(target=recorder.observe, args=(batch_of(BAGS),))
        request.start()
        request.join(30)
        assert not request.is_alive()  # it did not wait
    assert recorder.stats.batches_dropped == 1
    assert recorder.stats.bags_seen == 0


def test_a_save_under_way_does_not_hold_requests(tmp_path, monkeypatch) -> None:
    from grace_torchrec import artifact

    recorder = recorder_of(model_of(), min_support=1)
    recorder.observe(batch_of(BAGS))
    write, seen = artifact.write_folder, []

    def slow(*arguments):
        recorder.observe(batch_of(BAGS))  # a request in the middle of the writing
        seen.append(recorder.stats.bags_seen)
        write(*arguments)

    monkeypatch.setattr(artifact, "write_folder", slow)
    recorder.save(tmp_path / "p")
    assert seen == [18]
    assert recorder.stats.batches_dropped == 0


def test_threads_lose_nothing_unsaid() -> None:
    recorder = recorder_of(model_of(), min_support=1, max_bags=50)
    batch = batch_of(BAGS)
    threads = [
        threading.Thread(target=lambda: [recorder.observe(batch) for _ in range(200)])
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = recorder.stats
    assert stats.bags_seen + 9 * stats.batches_dropped == 9 * 1200
    assert stats.batches_failed == 0
    assert stats.bags_held == 100


def test_memory_stays_below_what_is_said() -> None:
    recorder = recorder_of(model_of(), max_bags=3000, max_ids=1 << 14, max_bag_ids=1000)
    rng = np.random.default_rng(0)
    bags = [rng.integers(0, 20, rng.integers(1, 8)).tolist() for _ in range(8000)]
    batches = [
        batch_of({"item": bags[k : k + 250], "seen": [[]] * 250, "shop": [[1]] * 250})
        for k in range(0, 8000, 250)
    ]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for batch in batches:
        recorder.observe(batch)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    stats = recorder.stats
    assert taken <= stats.bytes_held <= recorder.max_bytes
    assert taken > 0.3 * stats.bytes_held  # the bound says something
    assert stats.bags_held == 6000
    assert recorder.max_bytes == 2 * (3000 * BAG_BYTES + (1 << 14) * 4)


def test_copies_and_pickles_of_a_hooked_model_are_not_recorded() -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=1).attach()
    copy.deepcopy(model)(batch_of(BAGS))
    pickle.loads(pickle.dumps(model))(batch_of(BAGS))
    torch.fx.Tracer().trace(nn.Sequential(nn.Linear(2, 2)))
    assert recorder.stats.bags_seen == 0
    assert recorder.attach() is recorder  # again: no bag counts twice
    model(batch_of(BAGS))
    assert recorder.stats.bags_seen == 9


def test_a_trace_of_the_model_is_no_request() -> None:
    from torchrec.fx import Tracer

    model = model_of()
    recorder = recorder_of(model).attach()
    graph = Tracer(leaf_modules=[]).trace(model)
    assert len(graph.nodes) == len(Tracer(leaf_modules=[]).trace(model_of()).nodes)
    assert recorder.stats.batches_failed == recorder.stats.bags_seen == 0


@pytest.mark.parametrize("half", [{"half_life_bags": 40.0}, {"half_life_s": 40.0}])
def test_a_half_life_prefers_what_came_late(half) -> None:
    now = [0.0]
    recorder = recorder_of(model_of(), min_support=1, max_bags=50, clock=lambda: now[0], **half)
    for number in range(1000):
        now[0] = float(number)
        recorder.observe(batch_of({"shop": [[number * 20 // 1000]]}))
    late = recorder.profile().tables["t_shop"].trace.ids_L
    assert np.median(late) >= 17


def test_bags_since_a_time_are_those_that_came_after_it() -> None:
    now = [1.0]
    recorder = recorder_of(model_of(), min_support=1, clock=lambda: now[0])
    recorder.observe(batch_of({"shop": [[1]]}))
    now[0] = 2.0
    recorder.observe(batch_of({"shop": [[2], [3]]}))
    since = recorder.profile(since_s=1.0).tables["t_shop"].trace
    assert bags_of(since) == [[2], [3]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_bags": 0}, {"max_ids": 4, "max_bag_ids": 5}, {"share": 0.0}, {"share": 1.5},
        {"half_life_bags": 0.0}, {"half_life_bags": 1.0, "half_life_s": 1.0}, {"min_support": 0},
        {"half_life_s": float("nan")}, {"max_overhead": 0.0}, {"max_overhead": 1.0},
        {"max_overhead": float("nan")}, {"max_bags": 2.5}, {"min_support": True}, {"share": True},
        {"max_ids": float("inf")}, {"max_overhead": "x"}, {"half_life_s": True}, {"share": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(grace.GraceError, match=r"recorder: (give|share|m(ax|in)_[a-z_]+)"):
        recorder_of(model_of(), **wrong)


def test_a_model_without_collections_is_refused() -> None:
    with pytest.raises(grace.NotSupported, match="no EmbeddingBagCollection"):
        recorder_of(nn.Linear(2, 2))
    with pytest.raises(grace.NotSupported, match="two tables are called 't_item'"):
        recorder_of(nn.Sequential(model_of(), model_of()))


@pytest.mark.parametrize("wrong", ["x", None, 3, nn.Linear, [nn.Linear(2, 2)]], ids=str)
def test_what_is_no_model_is_refused(wrong) -> None:
    with pytest.raises(grace.GraceError, match=r"TraceRecorder: model is .*; an nn\.Module"):
        TraceRecorder(wrong)
    with pytest.raises(grace.GraceError, match=r"TraceRecorder: model is .*; an nn\.Module"):
        TraceRecorder.resume("nowhere", wrong)


def test_support_is_of_the_whole_sample_also_where_only_late_bags_are_asked_for() -> None:
    now = [1.0]
    recorder = recorder_of(model_of(), min_support=2, clock=lambda: now[0])
    recorder.observe(batch_of({"shop": [[1], [4]]}))
    now[0] = 2.0
    recorder.observe(batch_of({"shop": [[1, 3], [2]]}))
    assert bags_of(recorder.profile(since_s=1.0).tables["t_shop"].trace) == [[1]]


@pytest.mark.parametrize(
    "options", [{"min_support": "2"}, {"min_support": 0}, {"min_support": True}, {"since_s": "x"}]
)
def test_a_profile_is_asked_for_by_numbers(options) -> None:
    with pytest.raises(grace.GraceError, match=r"recorder\.profile: (min_support|since_s)"):
        recorder_of(model_of()).profile(**options)


def test_a_seed_is_a_number() -> None:
    assert recorder_of(model_of(), seed=np.int64(3)).max_bytes
    with pytest.raises(grace.GraceError, match="seed is a list"):
        recorder_of(model_of(), seed=[1])


def test_a_closed_recorder_may_be_attached_again_and_goes_on() -> None:
    model = model_of()
    recorder = recorder_of(model, min_support=1).attach()
    model(batch_of(BAGS))
    recorder.close()
    model(batch_of(BAGS))
    assert recorder.stats.batches_failed == 0
    seen = recorder.stats.bags_seen
    recorder.attach()
    model(batch_of(BAGS))
    assert recorder.stats.bags_seen == 2 * seen
