"""What queries that share streams really tell them is free of races, and every wait of it is needed."""

import random
from typing import Any

import pytest
import torch
from told_streams import ToldStreams
from torch import nn

from bench.scheduling.random_programs import random_lowered
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.program import HostSync, Instruction, Program, Wait
from grace_torchrec.schedule.race_check import find_races
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.segment_program import program_of
from grace_torchrec.schedule.stream_sets import StreamSet
from grace_torchrec.schedule.tracing import op_graph, trace
from grace_torchrec.serve.segmented_model import QueryInFlight, SegmentedModel
from grace_torchrec.serve.shared_streams import SharedStreams

CPU = torch.device("cpu")


class Cached(nn.Module):
    """A look-up that changes a cache of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.mutable_resources = (name,)
        self.rows = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x)


class Tables(nn.Module):
    """Four look-ups, two by one cache, and something to compute beside and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Cached("a"), Cached("b"), Cached("c")
        self.again, self.dense, self.top = Cached("a"), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.first(x) + self.second(x) + self.third(x)
        return self.top(torch.relu_(self.dense(x)) + pooled) * self.again(x)


def case_of(model: nn.Module, batch: tuple[Any, ...], seed: int) -> tuple[Any, Any]:
    """Return a model's lowered module and its segments, of a random schedule."""
    gm = trace(model)
    graph = op_graph(gm)
    lowered = random_lowered(random.Random(seed), graph, 4)
    module = to_graph_module(gm, lowered)
    return module, program_of(module, lowered, roofline(gm, graph, batch))


def tell(
    module: Any, program: Any, batches: Any, seed: int, *, callers: int = 3, affinity: bool = True
) -> ToldStreams:
    """Tell three streams all queries, begun and gone on with in random order, as callers are free."""
    rng = random.Random(seed)
    told = ToldStreams(3, callers, program, rng)
    streams: StreamSet = told
    model = SegmentedModel(SharedStreams(3, CPU, streams=streams), program)
    if not affinity:
        model.scheduler.groups[:] = [-1] * len(program.runs)
    waiting = list(enumerate(batches))
    under_way: dict[int, tuple[int, QueryInFlight]] = {}
    with torch.no_grad():
        wanted = [module(*batch) for batch in batches]
        while waiting or under_way:
            told.caller = rng.randrange(callers)
            if told.caller not in under_way:
                if waiting:
                    place, batch = waiting.pop()
                    under_way[told.caller] = place, QueryInFlight(model, module, batch)
                continue
            place, query = under_way[told.caller]
            if not query.launch_next():
                query.join()
                assert torch.equal(query.result(), wanted[place])
                del under_way[told.caller], query
    told.close()
    return told


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak) if n == "wide_deep" else n for n in MODELS]
)
def test_bundled_models_in_flight_are_told_without_races(name: str) -> None:
    example = bundled(name, batch=2, batches=4)
    module, program = case_of(example.model, example.batches[0], 1)
    assert tell(module, program, example.batches, 7).races() == []


def tables(seed: int) -> tuple[Any, Any, list[tuple[torch.Tensor]]]:
    torch.manual_seed(0)
    batches = [(torch.rand(2, 8),) for _ in range(8)]
    return *case_of(Tables().eval(), batches[0], seed), batches


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(8, marks=pytest.mark.soak),)])
def test_caches_and_memory_are_safe_whatever_is_done_when(seed: int) -> None:
    for again in range(3 if seed < 8 else 60):
        told = tell(*tables(seed), 100 * seed + again)
        assert told.races() == []
        assert sum(where in told.address for where in told.address) > 8  # memory was used again


def test_caches_that_are_not_kept_on_their_stream_are_a_race() -> None:
    racy = sum(bool(tell(*tables(seed), seed, affinity=False).races()) for seed in range(12))
    assert racy >= 10


def test_leaving_out_what_one_segment_waits_for_is_a_race() -> None:
    """But where the host knew that it was done, or the stream had waited for it before."""
    tried = found = 0
    for seed in range(4):
        told = tell(*tables(seed), seed)
        for first, last in groups_of_waits(told.told):
            kept = (*told.told[:first], *told.told[last:])
            tried += 1
            found += bool(find_races(Program(kept, told.address), ["a", "b", "c"], most=1))
    assert found >= 0.7 * tried > 50


def groups_of_waits(told: list[Instruction]) -> list[tuple[int, int]]:
    """Return the places of waits in a row for what the host does not know to be done."""
    done: set[Any] = set()
    found = []
    for place, instruction in enumerate(told):
        if isinstance(instruction, HostSync):
            done.add(instruction.event)
        elif isinstance(instruction, Wait) and not isinstance(told[place - 1], Wait):
            last = next(k for k in range(place, len(told)) if not isinstance(told[k], Wait))
            if any(wait.event not in done for wait in told[place:last]):
                found.append((place, last))
    return found
