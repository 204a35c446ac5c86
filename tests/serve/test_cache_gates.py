"""A row cache is changed by one batch at a time, whoever computes: workers, stock model or shadow."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from grace_torchrec.serve.cache_gates import CacheGate, CacheGates
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.live_model import LiveModel

PATIENCE_S = 60


class Cached(nn.Module):
    """A look-up that changes a cache, which is slow, and knows whether two were in it at a time."""

    def __init__(self, name: str = "cache:t") -> None:
        super().__init__()
        self.mutable_resources = (name,)
        self.lock = threading.Lock()
        self.calls = self.inside = self.most_inside = 0

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            self.calls += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        time.sleep(0.002)
        with self.lock:
            self.inside -= 1
        return x * 2


class Around(nn.Module):
    """A model of one look-up, which another may use as well."""

    def __init__(self, lookup: nn.Module) -> None:
        super().__init__()
        self.lookup = lookup

    def forward(self, x: Tensor) -> Tensor:
        return self.lookup(x) + 1


@pytest.fixture
def cached() -> Iterator[Cached]:
    cache = Cached()
    yield cache
    assert cache.most_inside == 1
    assert cache.calls > 20


def ask(engine: Engine, count: int = 10) -> None:
    futures = [engine.submit(torch.full((1, 2), float(k))) for k in range(count)]
    assert [float(one.result(PATIENCE_S)[0, 0]) for one in futures] == [
        2.0 * k + 1 for k in range(count)
    ]


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_shadow_and_a_toggled_stock_model_never_share_a_cache_with_a_batch(
    cached, is_shared
) -> None:
    """Also where stock and served read the same module: a swap adopts the tables."""
    served = Around(cached).eval()
    stock = Around(cached if is_shared else Cached("cache:other")).eval()
    with Engine(served, stock=stock, shadow=1.0, max_inflight=2, max_batch=1) as engine:
        for on in (False, True, False, True):
            engine.use_stock(on)
            ask(engine)
        engine.drain()
        found = engine.metrics.snapshot().shadow
    assert (found.different, found.failed) == (0, 0)
    if not is_shared:
        assert stock.lookup.most_inside == 1


def test_a_model_that_replaces_another_minds_its_cache(cached) -> None:
    """Requests drawn for the shadow are compared with the old one, while the new one answers."""
    models = [Around(cached).eval() for _ in range(2)]
    with Engine(models[0], stock=models[0], shadow=1.0, max_inflight=2, max_batch=1) as engine:
        ask(engine)
        engine.replace(models[1])
        ask(engine)
        engine.drain()


def test_who_passes_alone_waits_for_those_who_pass_together_and_they_for_it() -> None:
    """Together: batches on shared streams, whose scheduler keeps the cache on one of them."""
    gate, passed = CacheGate(), threading.Event()

    def pass_alone() -> None:
        with gate.passed(alone=True):
            passed.set()

    thread = threading.Thread(target=pass_alone)
    with gate.passed(alone=False), gate.passed(alone=False):
        thread.start()
        assert not passed.wait(0.02)
    thread.join(PATIENCE_S)
    assert passed.is_set()


def test_who_passes_alone_is_not_passed_by_those_who_come_later() -> None:
    """However many pass together, one after the other: shadow and stock model have their turn."""
    gate, ends, passed = CacheGate(), threading.Event(), threading.Event()

    def pass_again_and_again() -> None:
        while not ends.is_set():
            with gate.passed(alone=False):
                time.sleep(0.005)

    def pass_alone() -> None:
        with gate.passed(alone=True):
            passed.set()

    together = [threading.Thread(target=pass_again_and_again) for _ in range(3)]
    for thread in together:
        thread.start()
        time.sleep(0.002)  # so that one of them is always inside
    alone = threading.Thread(target=pass_alone)
    alone.start()
    had_its_turn = passed.wait(1)
    ends.set()
    for thread in (*together, alone):
        thread.join(PATIENCE_S)
    assert had_its_turn


def test_a_wait_that_is_interrupted_holds_nobody_up(monkeypatch) -> None:
    gate = CacheGate()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gate._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.passed(alone=True):
            pass
    with gate.passed(alone=True):
        pass


def test_a_gpu_is_waited_for_also_where_the_model_raises(monkeypatch) -> None:
    gates, waited = CacheGates(Cached(), {}), list[torch.device]()

    class Stream:
        """One that notes who waits for it."""

        def __init__(self, gpu: torch.device) -> None:
            self.gpu = gpu

        def synchronize(self) -> None:
            waited.append(self.gpu)

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(gates, "_gpus", {gpu})
    with pytest.raises(KeyError), gates.passed(alone=True):
        raise KeyError
    assert waited == [gpu]
    with gates.passed(alone=True):  # and nobody holds the gate any more
        pass
    assert waited == [gpu, gpu]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_is_on_the_gpus_of_its_numbers() -> None:
    cache = Cached()
    cache.register_buffer("rows", torch.zeros(3, device="cuda"))
    assert CacheGates(cache, {})._gpus == {cache.rows.device}
    assert not CacheGates(nn.Linear(2, 2).cuda(), {})._gpus  # without a cache nobody waits


def test_models_without_a_cache_compute_side_by_side() -> None:
    meets = threading.Barrier(2, timeout=PATIENCE_S)

    class Meets(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            meets.wait()
            return x

    live = LiveModel(Meets().eval(), None)
    threads = [threading.Thread(target=live.compute, args=((torch.ones(1),),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not meets.broken
