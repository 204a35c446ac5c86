"""An engine whose batches share streams answers as one whose batches do not."""

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.schedule import stream_pass
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.segment_program import segment_program
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.segmented_model import scheduled_module

KEYS = ("item", "seen", "shop")
PATIENCE_S = 60
Request = tuple[torch.Tensor, KeyedJaggedTensor]


def request_of(seed: int, bad: bool = False) -> Request:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (len(KEYS) * 2,), generator=random)
    ids = torch.randint(0, 20, (int(lengths.sum()),), generator=random)
    if bad:
        lengths[0], ids = lengths[0] + 1, torch.cat([torch.tensor([20_000]), ids])
    bags = KeyedJaggedTensor(keys=list(KEYS), values=ids, lengths=lengths)
    return torch.rand(2, 3, generator=random), bags


def ask(engine: Engine, batches: list[Request]) -> list[Any]:
    futures: list[Future[Any]] = [engine.submit(*batch) for batch in batches]
    return [future.exception(PATIENCE_S) or future.result() for future in futures]


def with_arms(model: nn.Module) -> nn.Module:
    """Give a model a dense arm that is worth a stream of its own, also by the time of a busy CPU."""
    torch.manual_seed(1)
    layers = [nn.Linear(3, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4)]
    model.dense = nn.Sequential(*layers).eval()
    return model


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("grace-stream")]


def give_costs(monkeypatch, op_us: float) -> None:
    def costs(gm: Any, graph: OpGraph, example: Any) -> OpStats:
        times = [5 * op_us if "sparse" in op.name else op_us for op in graph.ops]
        return OpStats.of(graph, [OpStat(us) for us in times], "cpu", "given")

    monkeypatch.setattr(stream_pass, "profile_cpu", costs)


@pytest.fixture(autouse=True)
def even_costs(monkeypatch) -> None:
    """Costs are given: what a busy machine measures may leave no schedule."""
    give_costs(monkeypatch, 80.0)


@pytest.mark.parametrize("lookup", ["fused", "ahead"])
def test_batches_that_share_streams_are_answered_bit_for_bit(
    model_of, plan_for, served_of, lookup
) -> None:
    model = with_arms(model_of())
    served = served_of(model, plan_for(model, lookup=lookup), row_dtype="fp32")
    batches = [request_of(seed) for seed in range(24)]
    wanted = [served(*batch) for batch in batches]
    segments = segment_program(scheduled_module(served)).graph.ops
    assert any(segment.kind == "embedding" for segment in segments)
    with Engine(served, max_inflight=3, max_batch=1, streams=2) as engine:
        assert all(map(torch.equal, ask(engine, batches), wanted))
        told = engine.metrics.snapshot()
        with (
            torch.no_grad(),
            pytest.raises(GraceError, match="streams must be an integer of 1 or more"),
        ):
            Engine(served, streams=0)
    assert sorted(told.streams) == [0, 1]
    assert sum(load.launched for load in told.streams.values()) >= told.batches == len(batches)
    assert not stream_threads()


def test_a_bad_request_fails_alone_and_streams_go_on(model_of, served_of) -> None:
    model = with_arms(model_of())
    served = served_of(model, row_dtype="fp32")
    batches = [request_of(seed, bad=seed in (3, 9)) for seed in range(16)]
    with Engine(served, max_inflight=2, streams=2) as engine, torch.no_grad():
        for _ in range(2):
            for seed, (found, batch) in enumerate(zip(ask(engine, batches), batches, strict=True)):
                if seed in (3, 9):
                    assert isinstance(found, ValueError)
                else:
                    assert torch.allclose(found, model(*batch), atol=1e-5)


def test_models_change_places_and_deltas_arrive_while_streams_are_shared(
    model_of, served_of, swap_of
) -> None:
    """A served model, a scheduled one that was swapped, and stock; each answers its own batches."""
    model = with_arms(model_of())
    old = served_of(model, row_dtype="fp32")
    swapped = with_arms(model_of())
    swapped.sparse = swap_of(swapped.sparse, num_hbm_sums=2)
    new = schedule_(swapped.eval(), request_of(0), 3, wait_us=0.0)
    assert new.modified, new.reason
    batches = [request_of(seed) for seed in range(12)]
    with Engine(old, stock=model, max_inflight=2, max_batch=1, streams=2, shadow=0.5) as engine:
        rows = torch.ones(20, 4)
        grace.publish_delta(old, {"t_item": (torch.arange(20), rows)})
        assert all(map(torch.equal, ask(engine, batches), [old(*batch) for batch in batches]))
        with torch.no_grad():
            wanted = [swapped(*batch) for batch in batches]
            stock = [model(*batch) for batch in batches]
        engine.replace(new.module)
        assert all(map(torch.equal, ask(engine, batches), wanted))
        before = engine.metrics.snapshot().streams
        engine.use_stock()
        assert all(map(torch.equal, ask(engine, batches), stock))
        assert engine.metrics.snapshot().streams == before  # stock has no segments
        engine.use_stock(False)
        with pytest.raises(NotSupported, match="not scheduled over streams"):
            engine.replace(nn.Identity().eval())
        assert all(map(torch.equal, ask(engine, batches), wanted))


class Cache(nn.Module):
    """A look-up that changes a cache; it can be held, and knows whether two were in it at a time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.mutable_resources = (name,)
        self.free, self.entered = threading.Event(), threading.Semaphore(0)
        self.inside = self.most_inside = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.release()
        assert self.free.wait(PATIENCE_S)
        self.inside -= 1
        return x * 2


class CachedArms(nn.Module):
    """A look-up through a cache beside something that is worth a stream of its own."""

    def __init__(self, sparse: Cache) -> None:
        super().__init__()
        self.sparse, self.dense = sparse, nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sparse(x) + self.dense(x)


def launched(engine: Engine) -> int:
    return sum(load.launched for load in engine.metrics.snapshot().streams.values())


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_new_model_waits_for_batches_of_the_old_one_that_use_its_cache(monkeypatch, name) -> None:
    give_costs(monkeypatch, 1e6)  # no hand-over takes so long: segments are as they were cut
    batch, cache = (torch.ones(1, 4),), Cache("a")
    cache.free.set()
    old = CachedArms(cache).eval()
    new = old if name == "a" else CachedArms(Cache("b")).eval()
    new.sparse.free.set()
    between = CachedArms(Cache("c")).eval()  # replaces the old one, and is replaced before a batch
    between.sparse.free.set()
    models = (old, new, between)
    modules = [schedule_(model, batch, 2, wait_us=0.0).module for model in models]
    with torch.no_grad():
        wanted = [model(*batch) for model in (old, new)]
    for one in {cache, new.sparse}:
        one.most_inside, one.entered = 0, threading.Semaphore(0)
    cache.free.clear()
    num_segments = len(segment_program(modules[0]).runs)
    with Engine(modules[0], max_inflight=2, streams=2) as engine:
        first = engine.submit(*batch)
        assert cache.entered.acquire(timeout=PATIENCE_S)  # all that it launches is launched soon
        while launched(engine) < num_segments:
            time.sleep(0.001)
        replacing = [threading.Thread(target=engine.replace, args=(m,)) for m in modules[2:0:-1]]
        for number, thread in enumerate(replacing, 1):
            thread.start()
            while engine.metrics.snapshot().replaced < number:
                time.sleep(0.001)
        before = launched(engine)
        second = engine.submit(*batch)
        until_s = time.monotonic() + (0.1 if name == "a" else PATIENCE_S)
        while launched(engine) == before and time.monotonic() < until_s:
            time.sleep(0.001)
        waited = launched(engine) == before
        cache.free.set()
        assert waited == (name == "a")
        answers = [first.result(PATIENCE_S), second.result(PATIENCE_S)]
        for thread in replacing:
            thread.join(PATIENCE_S)
    assert all(map(torch.equal, answers, wanted))
    assert cache.most_inside == new.sparse.most_inside == 1


def test_an_engine_whose_model_cannot_share_streams_is_not_begun(model_of, served_of) -> None:
    with pytest.raises(NotSupported, match=r"streams=2 or more, or leave the engine's streams out"):
        Engine(served_of(model_of(), streams=1), streams=2)
    assert not stream_threads()


def test_an_engine_whose_models_are_refused_leaves_no_streams_behind(model_of, served_of) -> None:
    served = served_of(with_arms(model_of()))
    with pytest.raises(NotSupported, match="stock is in training mode"):
        Engine(served, stock=model_of().train(), streams=2)
    assert not stream_threads()


@pytest.mark.parametrize("call", ["replace", "drain", "close"])
def test_a_model_that_computes_cannot_wait_for_itself(model_of, served_of, call) -> None:
    """Its operators run on threads of the streams, not of the workers."""
    served = served_of(with_arms(model_of()))
    engine = Engine(served, streams=2)
    calls = {"replace": lambda: engine.replace(served), "drain": engine.drain, "close": engine.close}  # fmt: skip
    layer = scheduled_module(served).get_submodule("dense.1")
    hook = layer.register_forward_pre_hook(lambda *_: calls[call]())
    try:
        with pytest.raises(NotSupported, match=f"Engine.{call}: called .* thread of yours"):
            engine.submit(*request_of(0)).result(PATIENCE_S)
        hook.remove()
        assert engine.submit(*request_of(0)).exception(PATIENCE_S) is None
    finally:
        engine.close(timeout_s=1)
