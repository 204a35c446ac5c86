"""However a recorder comes to the batches of an engine, it counts each of them once."""

import copy

import pytest
import torch

import grace_torchrec as grace

PATIENCE_S = 60
BAGS = {"item": [[3, 1], [7]], "seen": [[2], [1, 2]], "shop": [[0], [1]]}
REQUESTS = 3
SEEN = 6 * REQUESTS  # two rows of three features each


def recorder_for(model) -> grace.TraceRecorder:
    return grace.TraceRecorder(model, min_support=1, max_overhead=None)


def serve(engine, batch_of) -> None:
    for _ in range(REQUESTS):
        engine.submit(torch.zeros(2, 3), batch_of(BAGS)).result(PATIENCE_S)


@pytest.mark.parametrize("given", [False, True], ids=["attached only", "attached and given"])
def test_hooks_and_an_engine_count_a_batch_once(given, model_of, batch_of) -> None:
    model = model_of()
    recorder = recorder_for(model).attach()
    with grace.Engine(model, recorder=recorder if given else None) as engine:
        serve(engine, batch_of)
    assert recorder.stats.bags_seen == SEEN
    model(torch.zeros(2, 3), batch_of(BAGS))  # beside the engine: the hooks tell
    assert recorder.stats.bags_seen == SEEN + 6


def test_what_the_shadow_computes_again_is_no_request(model_of, batch_of) -> None:
    model = model_of()
    stock = copy.deepcopy(model)
    recorder = recorder_for(stock).attach()
    with grace.Engine(model, stock=stock, shadow=1.0, recorder=recorder) as engine:
        serve(engine, batch_of)
        engine.drain()
        assert engine.metrics.snapshot().shadow.compared == REQUESTS
    assert recorder.stats.bags_seen == SEEN


def test_a_recorder_that_is_attached_or_replaced_later_counts_once_too(model_of, batch_of) -> None:
    model, other = model_of(), model_of(seed=1)
    recorder = recorder_for(model)
    with grace.Engine(model, recorder=recorder) as engine:
        recorder.attach()
        serve(engine, batch_of)
        recorder.follow(model, other)
        engine.replace(other)
        serve(engine, batch_of)
    assert recorder.stats.bags_seen == 2 * SEEN


def test_another_recorder_hears_what_this_one_is_shown(model_of, batch_of) -> None:
    model = model_of()
    shown, hooked = recorder_for(model), recorder_for(model).attach()
    with grace.Engine(model, recorder=shown) as engine:
        serve(engine, batch_of)
    assert (shown.stats.bags_seen, hooked.stats.bags_seen) == (SEEN, SEEN)
