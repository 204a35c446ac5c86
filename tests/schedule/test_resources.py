"""A cache that look-ups change: right on one stream or with a lock, wrong rows where two queries meet."""

import threading

import pytest
import torch
from delayed_streams import DelayedStreams
from row_cache import CachedRows
from torch import nn
from worker_program import WorkerProgram

from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.in_flight import prove
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.resources import resource_pins
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.tracing import op_graph, trace

ROWS, DIM, SLOTS, IDS, TABLES = 4000, 8, 50, 40, 3
PAUSE_S = 1e-4  # between taking slots and reading them, which the other stream may get anyway


def table(seed=0, rows=ROWS):
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


def ids_of(seed, count=IDS, rows=ROWS):
    return torch.randint(rows, (count,), generator=torch.Generator().manual_seed(seed))


def test_rows_are_those_of_the_table():
    rows = table()
    cache = CachedRows(rows, SLOTS, "t")
    for seed in range(30):
        ids = ids_of(seed)
        assert torch.equal(cache(ids), rows[ids])


def wrong_runs(streams, locked, runs):
    """How many of ``runs`` pairs of look-ups on these two streams gave a wrong row or an error."""
    rows = table()
    cache = CachedRows(rows, SLOTS, "t", locked, PAUSE_S)
    asked = [ids_of(seed) for seed in range(64)]
    cache(asked[0])
    wrong = 0
    with DelayedStreams(2) as workers:
        for run in range(runs):
            pair = (asked[run % 64], asked[(run * 7 + 13) % 64])
            found, done = [None, None], [threading.Event(), threading.Event()]

            def look_up(k, pair=pair, found=found, done=done):
                try:
                    found[k] = cache(pair[k])
                except Exception:  # the other one changed what this one had looked at
                    pass
                finally:
                    done[k].set()

            for k in (0, 1):
                workers.put(streams[k], lambda k=k, look_up=look_up: look_up(k))
            for event in done:
                event.wait()
            right = all(
                out is not None and torch.equal(out, rows[ids])
                for out, ids in zip(found, pair, strict=True)
            )
            wrong += not right
    return wrong


def test_two_streams_without_a_lock_give_wrong_rows():
    assert wrong_runs((0, 1), False, 100) >= 1


def test_one_stream_or_a_lock_gives_right_rows():
    assert wrong_runs((0, 0), False, 100) == 0
    assert wrong_runs((0, 1), True, 100) == 0


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            [CachedRows(table(k), SLOTS, f"t{k}", pause_s=PAUSE_S) for k in range(TABLES)]
        )

    def forward(self, ids):
        looked_up = [cache(ids[k]) for k, cache in enumerate(self.tables)]
        return torch.cat([torch.relu(rows) for rows in looked_up], 1)


def our_schedule(model):
    gm = trace(model)
    graph = op_graph(gm)
    stats = OpStats.of(graph, [OpStat(50.0) for _ in graph.ops], "json", "")
    pins = resource_pins(graph, stats, 3)
    return gm, make_schedule(graph, stats, Machine(3), pins=pins)


def wrong_with_our_schedule(runs):
    model = Cached().eval()
    gm, schedule = our_schedule(model)
    lowered = lower(schedule)
    assert prove(lowered).races == ()
    program = WorkerProgram(to_graph_module(gm, lowered))
    batches = [torch.stack([ids_of(3 * k + t) for t in range(TABLES)]) for k in range(16)]
    rows = [table(t) for t in range(TABLES)]
    wanted = [torch.cat([torch.relu(rows[t][b[t]]) for t in range(TABLES)], 1) for b in batches]
    wrong = 0
    with DelayedStreams(schedule.num_streams) as workers:
        for run in range(runs):
            chosen = (run % 16, (run * 5 + 3) % 16)
            started = [program.start(workers, batches[k]) for k in chosen]
            wrong += not all(
                torch.equal(result(), wanted[k]) for result, k in zip(started, chosen, strict=True)
            )
    return wrong


def test_our_schedule_gives_right_rows_with_two_queries_in_flight():
    assert len(set(our_schedule(Cached())[1].stream_n[:TABLES])) == TABLES
    assert wrong_with_our_schedule(100) == 0


@pytest.mark.soak
def test_our_schedule_gives_right_rows_in_ten_thousand_runs():
    assert wrong_with_our_schedule(10_000) == 0
