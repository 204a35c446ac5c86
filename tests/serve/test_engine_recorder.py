"""However a recorder comes to the batches of an engine, it counts each of them once."""

import copy

import pytest
import torch

import grace_torchrec as grace
from grace_torchrec.schedule import stream_pass
from grace_torchrec.schedule.op_stats import OpStat, OpStats

PATIENCE_S = 60
BAGS = {"item": [[3, 1], [7]], "seen": [[2], [1, 2]], "shop": [[0], [1]]}
REQUESTS = 3
SEEN = 6 * REQUESTS  # two rows of three features each


def recorder_for(model) -> grace.TraceRecorder:
    return grace.TraceRecorder(model, min_support=1, max_overhead=None)


@pytest.fixture(params=[None, 2], ids=["own streams", "shared streams"])
def streams(request, monkeypatch) -> int | None:
    """Streams of the engine; costs are given, for a busy machine may measure no gain."""

    def costs(gm, graph, example) -> OpStats:
        times = [400.0 if "sparse" in op.name else 80.0 for op in graph.ops]
        return OpStats.of(graph, [OpStat(us) for us in times], "cpu", "given")

    monkeypatch.setattr(stream_pass, "profile_cpu", costs)
    return request.param


@pytest.fixture
def model_for(model_of, batch_of, streams):
    """Return a function that makes a model; one whose modules run on threads of shared streams."""

    def make(**options):
        torch.manual_seed(1)
        model = model_of(**options)
        if streams is None:
            return model
        layers = [torch.nn.Linear(3, 300), torch.nn.ReLU(), torch.nn.Linear(300, 4)]
        model.dense = torch.nn.Sequential(*layers).eval()
        example = torch.zeros(2, 3), batch_of(BAGS)
        return grace.schedule_(model, example, streams=streams).module

    return make


def serve(engine, batch_of) -> None:
    for _ in range(REQUESTS):
        engine.submit(torch.zeros(2, 3), batch_of(BAGS)).result(PATIENCE_S)


@pytest.mark.parametrize("given", [False, True], ids=["attached only", "attached and given"])
def test_hooks_and_an_engine_count_a_batch_once(given, model_for, streams, batch_of) -> None:
    model = model_for()
    recorder = recorder_for(model).attach()
    with grace.Engine(model, recorder=recorder if given else None, streams=streams) as engine:
        serve(engine, batch_of)
    assert recorder.stats.bags_seen == SEEN
    model(torch.zeros(2, 3), batch_of(BAGS))  # beside the engine: the hooks tell
    assert recorder.stats.bags_seen == SEEN + 6


def test_what_the_shadow_computes_again_is_no_request(model_for, streams, batch_of) -> None:
    model = model_for()
    stock = copy.deepcopy(model)
    recorder = recorder_for(stock).attach()
    with grace.Engine(model, stock=stock, shadow=1.0, recorder=recorder, streams=streams) as engine:
        serve(engine, batch_of)
        engine.drain()
        assert engine.metrics.snapshot().shadow.compared == REQUESTS
    assert recorder.stats.bags_seen == SEEN


def test_a_recorder_that_is_attached_or_replaced_later_counts_once_too(
    model_for, streams, batch_of
) -> None:
    model, other = model_for(), model_for(seed=1)
    recorder = recorder_for(model)
    with grace.Engine(model, recorder=recorder, streams=streams) as engine:
        recorder.attach()
        serve(engine, batch_of)
        recorder.follow(model, other)
        engine.replace(other)
        serve(engine, batch_of)
    assert recorder.stats.bags_seen == 2 * SEEN


def test_another_recorder_hears_what_this_one_is_shown(model_for, streams, batch_of) -> None:
    model = model_for()
    shown, hooked = recorder_for(model), recorder_for(model).attach()
    with grace.Engine(model, recorder=shown, streams=streams) as engine:
        serve(engine, batch_of)
    assert (shown.stats.bags_seen, hooked.stats.bags_seen) == (SEEN, SEEN)


def test_what_the_stock_model_answers_counts_once_too(model_for, streams, batch_of) -> None:
    model = model_for()
    stock = copy.deepcopy(model)
    recorder = recorder_for(stock).attach()
    with grace.Engine(model, stock=stock, recorder=recorder, shadow=1.0, streams=streams) as engine:
        engine.use_stock()
        serve(engine, batch_of)
        engine.drain()
    assert recorder.stats.bags_seen == SEEN
