"""An engine over converted and swapped models: merged requests are answered as each alone."""

import threading
from concurrent.futures import Future

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor, KeyedTensor

import grace_torchrec as grace
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import Rejected

KEYS = ("item", "seen", "shop")
PATIENCE_S = 60
Request = tuple[torch.Tensor, KeyedJaggedTensor]


def request_of(seed: int, rows: int, bad: bool = False) -> Request:
    """One request: dense inputs and bags of any length, repeats and empty ones."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (len(KEYS) * rows,), generator=random)
    ids = torch.randint(0, 20, (int(lengths.sum()),), generator=random)
    if bad:
        lengths[0], ids = lengths[0] + 1, torch.cat([torch.tensor([20_000]), ids])
    bags = KeyedJaggedTensor(keys=list(KEYS), values=ids, lengths=lengths)
    return torch.randint(-4, 5, (rows, 3), generator=random).float(), bags


def requests(count: int = 40) -> list[Request]:
    return [request_of(seed, seed % 4) for seed in range(count)]


def ask(engine: Engine, batches: list[Request]) -> list[torch.Tensor]:
    futures: list[Future[torch.Tensor]] = [engine.submit(*batch) for batch in batches]
    return [future.result(PATIENCE_S) for future in futures]


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("lookup", ["fused", "ahead"])
@pytest.mark.parametrize("max_inflight", [1, 3])
def test_a_served_model_answers_merged_requests_as_the_stock_one_does(
    model_of, plan_for, served_of, lookup, max_inflight
) -> None:
    model = model_of()
    served = served_of(model, plan_for(model, lookup=lookup), row_dtype="fp32")
    batches = [batch for batch in requests() if batch[0].shape[0]]
    with Engine(served, max_inflight=max_inflight, max_batch=9) as engine, torch.no_grad():
        for found, batch in zip(ask(engine, batches), batches, strict=True):
            assert close(found, model(*batch))
    if lookup == "ahead":  # the engine rewrote every batch
        assert sum(held.plain_batches for held in served.collections.values()) == 0


class TwoCollections(nn.Module):
    """Looks up one batch of bags in two collections."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, bags: KeyedJaggedTensor) -> torch.Tensor:
        return torch.cat([self.first(bags).values(), self.second(bags).values()], dim=1)


@pytest.fixture
def two_of(collection_of, table_of):
    """Return a function that makes a model of two collections."""

    def make() -> TwoCollections:
        tables = [table_of("t_item"), table_of("t_seen", features=("seen",))]
        return TwoCollections(*(collection_of([table]) for table in tables)).eval()

    return make


@pytest.mark.parametrize("way", ["served", "swapped"])
def test_bags_are_rewritten_for_every_collection_if_they_are_for_one(
    two_of, model_plan, way
) -> None:
    model = two_of()
    in_line = {"num_hbm_sums": 0, "clusters": None, "lookup": "fused"}
    plan = model_plan(model, {"t_seen": in_line}, num_hbm_sums=2, lookup="ahead")
    batches = [request_of(seed, 2)[1] for seed in range(4)]
    wanted = [model(bags) for bags in batches]
    if way == "served":
        answers = grace.convert(model, plan, example=(batches[0],), streams=1)
    else:
        assert grace.accelerate_(model, plan).modules
        answers = model
    with Engine(answers) as engine, torch.no_grad():
        futures = [engine.submit(bags) for bags in batches]
        for future, one in zip(futures, wanted, strict=True):
            assert close(future.result(PATIENCE_S), one)


def test_empty_requests_are_answered_alone_and_among_others(model_of, served_of) -> None:
    model = model_of()
    served = served_of(model)
    with Engine(served) as engine:
        (alone,) = ask(engine, [request_of(0, 0)])
        width = served(*request_of(1, 1)).shape[1]
        assert alone.shape == (0, width)
        for found, batch in zip(ask(engine, requests()), requests(), strict=True):
            assert found.shape == (batch[0].shape[0], width)


def test_an_id_outside_its_table_fails_its_own_request_only(model_of, served_of) -> None:
    model = model_of()
    engine = Engine(served_of(model, row_dtype="fp32"))
    batches = [request_of(seed, 2, bad=seed in (5, 11)) for seed in range(16)]
    futures = [engine.submit(*batch) for batch in batches]
    engine.close()
    for seed, (future, batch) in enumerate(zip(futures, batches, strict=True)):
        if seed in (5, 11):
            assert isinstance(future.exception(), ValueError)
        else:
            assert close(future.result(), model(*batch))


def test_requests_that_come_rewritten_are_served_also_after_the_plan_changed(
    model_of, plan_for, served_of
) -> None:
    model = model_of()
    old = served_of(model, plan_for(model, lookup="ahead"), row_dtype="fp32")
    new_plan = plan_for(model, lookup="ahead", clusters=((7, 8, 9), (1, 5)))
    new = served_of(model, new_plan, row_dtype="fp32")
    batches = [request_of(seed, 2) for seed in range(8)]
    rewritten = list(grace.rewrite(batches, old, prefetch=0))
    with Engine(old, stock=model) as engine:
        wanted = [model(*batch) for batch in batches]
        for replaced in (False, True):
            if replaced:
                engine.replace(new)
            mixed = [pair[k % 2] for k, pair in enumerate(zip(batches, rewritten, strict=True))]
            assert all(map(close, ask(engine, mixed), wanted))
        engine.use_stock()
        assert all(map(close, ask(engine, rewritten), wanted))


def test_keyed_tensors_are_split_by_rows(collection_of, table_of, swap_of, batch_of) -> None:
    model = nn.Sequential(swap_of(collection_of([table_of()]), num_hbm_sums=2)).eval()
    batches = [batch_of({"item": [[1, 2], [3]]}), batch_of({"item": [[4, 5, 5]]})]
    with Engine(model) as engine:
        futures = [engine.submit(batch) for batch in batches]
        for future, batch in zip(futures, batches, strict=True):
            found = future.result(PATIENCE_S)
            assert isinstance(found, KeyedTensor)
            assert found.keys() == ["item"]
            assert torch.equal(found.values(), model(batch).values())


def test_deltas_arrive_between_batches_of_an_engine(model_of, served_of) -> None:
    model = model_of()
    served = served_of(model, row_dtype="fp32")
    batch = request_of(3, 2)
    ids, rows = torch.arange(20), torch.ones(20, 4)
    with Engine(served) as engine:
        ask(engine, [batch])
        grace.publish_delta(served, {"t_item": (ids, rows)})
        with torch.no_grad():
            model.sparse.embedding_bags["t_item"].weight.copy_(rows)
        (found,) = ask(engine, [batch])
    assert close(found, model(*batch))


def test_a_hundred_threads_of_one_row_requests_then_close(model_of, served_of) -> None:
    model = model_of()
    engine = Engine(served_of(model, row_dtype="fp32"), max_inflight=2, max_queue=64)
    wrong: list[object] = []
    begin = threading.Barrier(100)

    def send(seed: int) -> None:
        batch = request_of(seed, int(seed % 7 != 0))
        wanted = model(*batch) if seed % 7 else None
        begin.wait()
        for _ in range(10):
            try:
                found = engine.submit(*batch).result(PATIENCE_S)
            except Rejected:
                continue
            if found.shape[0] != batch[0].shape[0] or (
                wanted is not None and not close(found, wanted)
            ):
                wrong.append((seed, found))

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads[:50]:
        thread.join(PATIENCE_S)
    engine.close()  # while the others send
    for thread in threads:
        thread.join(PATIENCE_S)
    told = engine.metrics.snapshot()
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert told.accepted == told.answered
    assert told.accepted + told.rejected == 1000
