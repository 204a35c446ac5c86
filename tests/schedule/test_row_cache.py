"""The row cache: right on one stream or with a lock, wrong rows where two queries meet."""

import gc
import threading
import time
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from bench.rivals import lru as rival
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule import _lru_core
from grace_torchrec.schedule.cpu_streams import CpuStreams
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.in_flight import prove
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.resources import resource_pins
from grace_torchrec.schedule.row_cache import CachedRows, lru_found
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.tracing import op_graph, trace
from grace_torchrec.schedule.worker_program import WorkerProgram
from grace_torchrec.traces.trace import Trace

ROWS, DIM, SLOTS, IDS, TABLES = 4000, 32, 300, 256, 3


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


def test_the_least_recently_used_row_goes():
    cache, model = CachedRows(table(rows=20), 4, "t"), OrderedDict()
    for row in ids_of(1, 300, 20).tolist():
        cache(torch.tensor([row]))
        model.pop(row, None)
        model[row] = True
        if len(model) > 4:
            model.popitem(last=False)
        assert set(cache.row_of[cache.row_of >= 0].tolist()) == set(model)


@pytest.mark.parametrize("slots", [0, 1, 7, 64, 500])
def test_what_is_found_is_what_the_counting_rival_finds(slots):
    rng = np.random.default_rng(slots)
    trace, warm = (Trace.from_bags(rng.zipf(1.3, (n, 6)) % 200, 200) for n in (400, 90))
    found = lru_found(trace.ids_L, 200, slots, warm.ids_L)
    assert np.array_equal(found, rival.lru_found(trace, slots, warm))
    assert bool(slots) == bool(found.sum())


def test_the_cache_that_serves_hits_as_often_as_the_one_that_counts():
    cache, ids = CachedRows(table(rows=60), 16, "t"), np.random.default_rng(0).zipf(1.4, 900) % 60
    hits = 0
    for row in ids:
        hits += int(cache.slot_of[row] >= 0)
        cache(torch.tensor([int(row)]))
    assert hits == lru_found(ids, 60, 16, ids[:0]).sum() > 0


@pytest.mark.parametrize("how", ["written", "given other memory", "moved to shared memory"])
def test_rows_that_change_or_move_are_cached_anew(how):
    rows = nn.Parameter(table(rows=50))
    cache, ids = CachedRows(rows, 8, "t"), torch.arange(5)
    cache(ids)
    with torch.no_grad():
        if how == "written":
            rows[2] = 7.0
        elif how == "given other memory":
            rows.data = torch.full((50, DIM), 3.0)
        else:
            rows.share_memory_()
            rows[1] = 5.0
    gc.collect()
    assert torch.equal(cache(ids), rows.detach()[ids])
    assert not list(cache.parameters())


def test_the_table_outlives_its_first_owner():
    cache = CachedRows(table(rows=50), 8, "t")
    gc.collect()
    assert torch.equal(cache(torch.arange(8)), table(rows=50)[:8])


@pytest.mark.parametrize("ids", [[-1], [ROWS], [0, ROWS + 5]])
def test_an_id_outside_the_table_is_refused(ids):
    with pytest.raises(GraceError, match="cache:t: ids from"):
        CachedRows(table(), SLOTS, "t")(torch.tensor(ids))


def test_more_rows_than_slots_are_refused():
    with pytest.raises(GraceError, match="needs more than 2 slots"):
        CachedRows(table(), 2, "t")(torch.arange(3))


@pytest.mark.parametrize(
    ("rows", "slots"), [(torch.zeros(3), 1), (torch.zeros(3, 2).half(), 1), (torch.zeros(3, 2), 0)]
)
def test_an_impossible_cache_is_refused(rows, slots):
    with pytest.raises(GraceError, match="row cache 't'"):
        CachedRows(rows, slots, "t")


def wrong_runs(streams, locked, runs):
    """How many of ``runs`` pairs of look-ups on these two streams gave a wrong row or an error."""
    rows = table()
    cache = CachedRows(rows, SLOTS, "t", locked)
    asked = [ids_of(seed) for seed in range(64)]
    cache(asked[0])
    wrong = 0
    with CpuStreams(2) as workers:
        for run in range(runs):
            pair = (asked[run % 64], asked[(run * 7 + 13) % 64])
            found, done = [None, None], [threading.Event(), threading.Event()]

            def look_up(k, pair=pair, found=found, done=done):
                try:
                    found[k] = cache(pair[k])
                except GraceError:
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


@pytest.fixture
def late_reads(monkeypatch):
    """Between taking slots and reading them the other stream gets the time it may get anyway."""
    read = _lru_core.read

    def read_late(*arguments):
        time.sleep(1e-4)
        read(*arguments)

    monkeypatch.setattr(_lru_core, "read", read_late)


def test_two_streams_without_a_lock_give_wrong_rows(late_reads):
    assert wrong_runs((0, 1), False, 100) >= 1


def test_one_stream_or_a_lock_gives_right_rows(late_reads):
    assert wrong_runs((0, 0), False, 300) == 0
    assert wrong_runs((0, 1), True, 300) == 0


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([CachedRows(table(k), SLOTS, f"t{k}") for k in range(TABLES)])

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
    with CpuStreams(schedule.num_streams) as workers:
        for run in range(runs):
            chosen = (run % 16, (run * 5 + 3) % 16)
            started = [program.start(workers, batches[k]) for k in chosen]
            wrong += not all(
                torch.equal(result(), wanted[k]) for result, k in zip(started, chosen, strict=True)
            )
    return wrong


def test_our_schedule_gives_right_rows_with_two_queries_in_flight():
    assert len(set(our_schedule(Cached())[1].stream_n[:TABLES])) == TABLES
    assert wrong_with_our_schedule(200) == 0


@pytest.mark.soak
def test_our_schedule_gives_right_rows_in_ten_thousand_runs():
    assert wrong_with_our_schedule(10_000) == 0
