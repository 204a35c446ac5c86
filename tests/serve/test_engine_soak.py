"""An engine under everything at once: no answer is wrong, no request is lost, memory stays.

Clients send good, empty, malformed, hurried, cancelled and deadly requests, while models of other
plans are flipped in, trained rows arrive and the stock model takes over for a while.
``pytest --soak --soak-minutes 10 tests/serve/test_engine_soak.py``
"""

import copy
import logging
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import DeadlineExceeded, Rejected

logger = logging.getLogger(__name__)
KEYS, NUM_ROWS, DIM = ("item", "seen", "shop"), 20, 4
CLIENTS, PATIENCE_S, DEADLY = 8, 120, 666.0
SHARES = {
    "good": 60, "empty": 8, "rows": 4, "key": 4, "id": 4, "deadly": 0.3, "cancel": 8, "hurry": 8,
}  # fmt: skip
A_FEW = {"good": 25, "empty": 4, "rows": 2, "key": 2, "id": 2, "deadly": 1, "cancel": 4, "hurry": 4}
LAYOUTS = (
    {"lookup": "fused"},
    {"lookup": "ahead"},
    {"lookup": "fused", "clusters": ((7, 8, 9), (1, 5))},
)


class Deadly(nn.Module):
    """A model that ends the thread it runs on if a row asks for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, dense: Tensor, bags: KeyedJaggedTensor) -> Tensor:
        if bool((dense == DEADLY).any()):
            raise SystemExit("deadly")
        return self.model(dense, bags)

    def train(self, mode: bool = True) -> "Deadly":
        self.training = False
        return self


class World:
    """The models that may answer now, and what changes them; one thread at a time changes it."""

    def __init__(self, model, plan_for, served_of) -> None:
        self.epochs = {0: model}  # the stock model after each delta
        self.begun = self.done = 0  # a delta is begun, then all models have it
        plans = [plan_for(model, **layout) for layout in LAYOUTS]
        self.served = [served_of(model, plan, row_dtype="fp32") for plan in plans]
        self.models = [Deadly(served) for served in self.served]
        self.now = 0
        self.engine = Engine(
            self.models[0], stock=Deadly(model), max_inflight=2, max_batch=16, max_queue=32,
            shadow=0.05, shadow_tolerance=float("inf"), recorder=self,
        )  # fmt: skip
        self.observed = 0

    def observe(self, bags: KeyedJaggedTensor) -> None:
        self.observed += 1
        if self.observed % 50 == 0:
            raise RuntimeError("a recorder's own fault")

    def publish(self, rng: random.Random) -> None:
        """Trained rows arrive in every model, and in the stock model that stands for this epoch."""
        ids = torch.tensor(rng.sample(range(NUM_ROWS), 5))
        rows = torch.tensor([[rng.randint(-8, 8) for _ in range(DIM)] for _ in ids]).float()
        model = copy.deepcopy(self.epochs[self.done])
        with torch.no_grad():
            model.sparse.embedding_bags["t_item"].weight[ids] = rows
        self.epochs[self.done + 1] = model
        self.begun += 1
        for served in self.served:
            grace.publish_delta(served, {"t_item": (ids, rows)})
        self.engine.replace(self.models[self.now], stock=Deadly(model))
        self.done += 1
        self.epochs.pop(self.done - 50, None)

    def flip(self, rng: random.Random) -> None:
        """Another plan answers."""
        self.now = rng.randrange(len(self.models))
        self.engine.replace(self.models[self.now])

    def is_right(self, found: Tensor, batch: tuple[Tensor, KeyedJaggedTensor], first: int) -> bool:
        """Tell an answer of any epoch from ``first`` to now; rows are whole numbers: it is exact."""
        if not batch[0].shape[0]:  # the stock collection itself takes no empty batch
            return found.shape == (0, DIM + DIM * len(KEYS))
        for epoch in range(first, self.begun + 1):
            with torch.no_grad():
                wanted = self.epochs[epoch](*batch)
            if found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5):
                return True
        return False


def draw_request(rng: random.Random, rows: int) -> tuple[Tensor, KeyedJaggedTensor]:
    lengths = torch.tensor([rng.randint(0, 5) for _ in range(len(KEYS) * rows)], dtype=torch.int64)
    ids = torch.tensor([rng.randrange(NUM_ROWS) for _ in range(int(lengths.sum()))]).long()
    dense = torch.tensor([[rng.randint(-4, 4) for _ in range(3)] for _ in range(rows)])
    return (
        dense.float().reshape(rows, 3),
        KeyedJaggedTensor(keys=list(KEYS), values=ids, lengths=lengths),
    )


def shuffled(seed: int) -> Iterator[str]:
    """Every kind of request, a few times each."""
    kinds = [kind for kind, count in A_FEW.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return iter(kinds)


def endless(seed: int, until_s: float) -> Iterator[str]:
    """Kinds of requests until it is time."""
    rng = random.Random(seed)
    while time.monotonic() < until_s:
        yield rng.choices(list(SHARES), list(SHARES.values()))[0]


def client(
    world: World, seed: int, kinds: Iterator[str], seen: Counter[str], wrong: list[str]
) -> None:
    """Send requests of these kinds, one after the other; note what became of each."""
    rng = random.Random(seed)
    for kind in kinds:
        if wrong:
            return
        try:
            outcome = send(world, rng, kind)
        except Exception as error:
            outcome = f"{kind}: unexpected {error!r}"
        if outcome is None:
            seen[kind] += 1
        elif outcome == "rejected":
            seen[outcome] += 1
        else:
            wrong.append(outcome)


def send(world: World, rng: random.Random, kind: str) -> str | None:
    """Send one request; return what was wrong about its answer, ``rejected``, or None."""
    rows = 0 if kind == "empty" else rng.randint(1, 4)
    dense, bags = draw_request(rng, rows)
    if kind == "rows":
        dense = torch.zeros(rows + 1, 3)
    elif kind == "key":
        bags = KeyedJaggedTensor(["item", "seen", "else"], bags.values(), lengths=bags.lengths())
    elif kind == "id":
        lengths = bags.lengths().clone()
        lengths[0] += 1
        ids = torch.cat([torch.tensor([NUM_ROWS + 5]), bags.values()])
        bags = KeyedJaggedTensor(list(KEYS), ids, lengths=lengths)
    elif kind == "deadly":
        dense = torch.full_like(dense, DEADLY)
    first = world.done
    try:
        deadline_s = rng.choice([0.0, 1e-3, 5e-3]) if kind == "hurry" else None
        future = world.engine.submit(dense, bags, deadline_s=deadline_s)
    except Rejected:
        return "rejected"
    except grace.GraceError:
        return None if kind == "rows" else f"{kind}: refused at the door"
    if kind == "cancel":
        future.cancel()
    try:
        found = future.result(PATIENCE_S)
    except TimeoutError:
        return f"{kind}: lost"
    except CancelledError:
        return None if kind == "cancel" else f"{kind}: cancelled"
    except DeadlineExceeded:
        return None if kind == "hurry" else f"{kind}: expired"
    except Exception as error:
        return None if kind in ("key", "id", "deadly") else f"{kind}: {error!r}"
    if kind in ("rows", "key", "id", "deadly"):
        return f"{kind}: was answered"
    return None if world.is_right(found, (dense, bags), first) else f"{kind}: wrong answer"


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def endure(
    world: World, kinds: Callable[[int], Iterator[str]]
) -> tuple[Counter[str], list[str], list[int]]:
    """Let clients send and the world change; return outcomes, what was wrong, memory over time."""
    seen: list[Counter[str]] = [Counter() for _ in range(CLIENTS)]
    wrong: list[str] = []
    memory: list[int] = []
    clients = [
        threading.Thread(target=client, args=(world, seed, kinds(seed), seen[seed], wrong))
        for seed in range(CLIENTS)
    ]
    for thread in clients:
        thread.start()
    rng = random.Random(99)
    first = iter((world.publish, world.flip))
    while True:
        next(first, rng.choice([world.publish, world.flip, world.flip]))(rng)
        world.engine.use_stock(rng.random() < 0.2)
        memory.append(resident_bytes())
        if wrong or not any(thread.is_alive() for thread in clients):
            break
        clients[0].join(0.02)  # the pace of changes
    for thread in clients:
        thread.join(2 * PATIENCE_S)
    world.engine.close()
    assert not any(thread.is_alive() for thread in clients)
    return sum(seen, Counter()), wrong, memory


def check(world: World, wrong: list[str]) -> None:
    told = world.engine.metrics.snapshot()
    assert not wrong, wrong[:5]
    assert told.accepted == told.answered + told.failed + told.expired + told.cancelled
    assert told.queued == told.running == 0
    assert told.restarts
    assert world.done


@pytest.fixture(autouse=True)
def no_log_of_ended_workers(caplog) -> None:
    """pytest keeps what is logged, and with it the frames of every worker that ended."""
    caplog.set_level(logging.CRITICAL, "grace_torchrec.serve.workers")


def test_nothing_is_wrong_or_lost_for_a_moment(model_of, plan_for, served_of) -> None:
    world = World(model_of(), plan_for, served_of)
    seen, wrong, _ = endure(world, shuffled)
    check(world, wrong)
    hurried = seen.pop("hurry") + seen.pop("rejected", 0)  # some are refused at the door
    assert hurried == CLIENTS * A_FEW["hurry"]
    assert seen == {kind: CLIENTS * count for kind, count in A_FEW.items() if kind != "hurry"}


@pytest.mark.soak
def test_nothing_is_wrong_lost_or_kept_for_long(model_of, plan_for, served_of, request) -> None:
    world = World(model_of(), plan_for, served_of)
    until_s = time.monotonic() + 60 * request.config.getoption("--soak-minutes")
    seen, wrong, memory = endure(world, partial(endless, until_s=until_s))
    check(world, wrong)
    assert all(seen[kind] for kind in SHARES), seen
    warm = len(memory) // 3
    early, late = (statistics.median(part) for part in (memory[warm : 2 * warm], memory[-warm:]))
    logger.info(
        "%d requests: %s, %d deltas, memory %.4f",
        sum(seen.values()),
        dict(seen),
        world.done,
        late / early,
    )
    assert late <= early * 1.02
