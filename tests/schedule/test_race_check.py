"""The race check: known cases, an oracle, PyTorch's own sanitizer, deleted waits, caches in flight."""

import random

import pytest
from torch.cuda._sanitizer import EventHandler

from bench.scheduling.race import agreement, caches_in_flight, deletions
from bench.scheduling.random_programs import random_program
from grace_torchrec.schedule.interleavings import goes_wrong
from grace_torchrec.schedule.program import HostSync, Launch, Program, Record, Wait
from grace_torchrec.schedule.race_check import find_races

WRITE, READ = Launch("writer", 0, (), ("b",)), Launch("reader", 1, ("b",), ())
OVERWRITE = Launch("again", 0, (), ("c",))
EVENT = (Record("e", 0), Wait("e", 1))


def kinds(*told, address=None, given=()):
    program = Program(tuple(told), address or {})
    found = [race.kind for race in find_races(program, given)]
    assert bool(found) == goes_wrong(program, given)
    return found


def test_an_event_orders_a_write_and_a_read():
    assert kinds(WRITE, READ) == ["RAW"]
    assert kinds(WRITE, *EVENT, READ) == []


def test_an_event_stands_for_what_came_before_it_only():
    assert kinds(Record("e", 0), WRITE, Wait("e", 1), READ) == ["RAW"]


def test_memory_that_is_handed_out_again_waits_for_foreign_readers():
    address = {"b": 1, "c": 1}
    assert kinds(WRITE, *EVENT, READ, OVERWRITE, address=address) == ["WAR"]
    back = (Record("f", 1), Wait("f", 0))
    assert kinds(WRITE, *EVENT, READ, *back, OVERWRITE, address=address) == []


def test_a_value_that_was_written_over_cannot_be_read():
    address = {"b": 1, "c": 1}
    own = Launch("reader", 0, ("b",), ())
    assert kinds(WRITE, OVERWRITE, own, address=address) == ["clobbered"]


def test_two_writes_of_a_cache_are_ordered_by_one_stream_only():
    first = Launch("q0", 0, ("cache",), ("cache",))
    assert kinds(first, Launch("q1", 0, ("cache",), ("cache",)), given=["cache"]) == []
    assert kinds(first, Launch("q1", 1, ("cache",), ("cache",)), given=["cache"]) != []


def test_waiting_for_what_was_not_recorded_is_no_wait():
    assert "wait before record" in kinds(WRITE, Wait("e", 1), Record("e", 0), READ)


def test_a_value_that_nobody_wrote_is_found():
    assert kinds(READ) == ["never written"]
    assert kinds(READ, given=["b"]) == []


def test_knowledge_is_handed_on():
    middle = (Launch("middle", 1, ("b",), ("m",)), Record("f", 1), Wait("f", 2))
    last = Launch("last", 2, ("b", "m"), ())
    assert kinds(WRITE, *EVENT, *middle, last) == []
    assert kinds(WRITE, Record("f", 1), Wait("f", 2), last, *EVENT)[0] == "RAW"


def test_the_host_orders_what_it_tells_after_a_synchronisation():
    assert kinds(WRITE, Record("e", 0), HostSync("e"), READ) == []


def test_four_hundred_random_programs_agree_with_the_oracle():
    found = agreement(400, seed=11)
    assert found["disagreements"] == 0
    assert sum(n for kind, n in found["kinds"].items() if kind.endswith("race")) > 100
    assert sum(n for kind, n in found["kinds"].items() if kind.endswith("clean")) > 100


@pytest.mark.soak
def test_ten_thousand_random_programs_agree_with_the_oracle():
    assert agreement(10_000, seed=0)["disagreements"] == 0


def test_every_wait_of_the_models_schedules_is_missed_when_it_is_left_out():
    tried, found = deletions()
    assert found == tried > 50


def test_a_stream_for_each_table_keeps_caches_of_three_queries_apart():
    assert caches_in_flight(60, seed=5) == (0, pytest.approx(60, abs=6))


@pytest.mark.soak
def test_caches_of_a_thousand_models():
    affinity, free = caches_in_flight(1000, seed=0)
    assert affinity == 0
    assert free >= 900


def test_the_oracle_sees_a_race_that_only_one_order_shows():
    late = [Launch(f"w{k}", 0, (), (f"x{k}",)) for k in range(6)]
    told = (*late, WRITE, READ)
    assert goes_wrong(Program(told, {}), orders=0)


@pytest.mark.parametrize("seed", range(40))
def test_pytorchs_sanitizer_agrees(seed):
    _, program = random_program(random.Random(seed))
    ours = {race.kind for race in find_races(program, [f"cache {k}" for k in range(6)])}
    assert bool(ours & {"RAW", "WAR", "WAW"}) == bool(sanitizer_errors(program))


def sanitizer_errors(program):
    """What torch.cuda._sanitizer says of the same launches, records and waits."""
    handler = EventHandler()
    numbers = {}

    def number(kind, value):
        return numbers.setdefault((kind, value), len(numbers) + 1000)

    streams = range(program.num_streams)
    for stream in streams:
        handler._handle_stream_creation(number("stream", stream))
    errors = []
    for told in program.instructions:
        if isinstance(told, Record):
            if ("event", told.event) not in numbers:
                handler._handle_event_creation(number("event", told.event))
            handler._handle_event_record(number("event", told.event), number("stream", told.stream))
        elif isinstance(told, Wait):
            handler._handle_event_wait(number("event", told.event), number("stream", told.stream))
        elif isinstance(told, HostSync):
            handler._handle_event_synchronization(number("event", told.event))
        else:
            reads = {number("data", program.address_of.get(b, b)) for b in told.reads}
            writes = {number("data", program.address_of.get(b, b)) for b in told.writes}
            errors += handler._handle_kernel_launch(
                number("stream", told.stream), reads - writes, writes, set(), told.name,
                {key: [] for key in reads | writes},
            )  # fmt: skip
    return errors
