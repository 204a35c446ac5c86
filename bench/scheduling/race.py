"""race: the check against an oracle, against every deleted wait, with caches in flight.

Flow: fuzzed programs -> check and interleavings must agree; the models' schedules -> without any
one wait a race must be found; random models with caches, 3 queries in flight -> none with a
stream for each table, nearly all without.
"""

import random
import time
from collections import Counter
from typing import Any

from bench.scheduling.cells import cells
from bench.scheduling.random_programs import random_graph, random_lowered, random_program
from grace_torchrec.schedule.in_flight import products, prove
from grace_torchrec.schedule.interleavings import goes_wrong
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.race_check import find_races
from grace_torchrec.schedule.telling import to_program

PROGRAMS, IN_FLIGHT, TABLES, QUERIES, STREAMS = 10_000, 1000, 6, 3, 4
CACHES = [f"cache {place}" for place in range(TABLES)]


def race(programs: int = PROGRAMS, in_flight: int = IN_FLIGHT, seed: int = 0) -> dict[str, Any]:
    """Count agreements, deletions, races in flight; time the check.

    Args:
        programs: Fuzzed programs.
        in_flight: Random models with caches.
        seed: Of all draws.
    """
    tried, found = deletions()
    affinity, flagged = caches_in_flight(in_flight, seed)
    return {
        "programs": programs,
        **agreement(programs, seed),
        "deletions_tried": tried,
        "deletions_found": found,
        "in_flight": in_flight,
        "affinity_races": affinity,
        "free_flagged": flagged / in_flight,
        "us_per_op": us_per_op(),
    }


def agreement(programs: int, seed: int) -> dict[str, Any]:
    """Compare the check with the oracle on fuzzed programs."""
    rng = random.Random(seed)
    kinds: Counter[str] = Counter()
    disagreements = 0
    for number in range(programs):
        kind, program = random_program(rng)
        races = bool(find_races(program, CACHES))
        wrong = goes_wrong(program, CACHES, 20, number)
        if races and not wrong:  # a rare order: look longer before calling it a disagreement
            wrong = goes_wrong(program, CACHES, 3000, number)
        disagreements += races != wrong
        kinds[f"{kind}: {'race' if races else 'clean'}"] += 1
    return {"disagreements": disagreements, "kinds": dict(sorted(kinds.items()))}


def deletions() -> tuple[int, int]:
    """Leave each wait of the models' schedules out; return how many, and how many were noticed."""
    tried = found = 0
    for schedule in cells().values():
        program = to_program(lower(schedule))
        for place in program.waits():
            tried += 1
            found += bool(find_races(program.without(place), most=1))
    return tried, found


def caches_in_flight(programs: int, seed: int) -> tuple[int, int]:
    """Return how many programs race with a stream for each table, and how many without."""
    rng = random.Random(seed)
    pinned = free = 0
    for _ in range(programs):
        graph = random_graph(rng, TABLES + rng.randint(4, 12), TABLES)
        pins = {table: table % STREAMS for table in range(TABLES)}
        pinned += _races(rng, graph, pins)
        free += _races(rng, graph, None)
    return pinned, free


def _races(rng: random.Random, graph: OpGraph, pins: dict[int, int] | None) -> bool:
    """Return whether three queries, each placed for itself, race."""
    parts = [
        to_program(random_lowered(rng, graph, STREAMS, pins), query) for query in range(QUERIES)
    ]
    return any(find_races(program, CACHES, most=1) for program in products(parts))


def us_per_op() -> float:
    """Return the check's time for each operator of the models, the shortest of five."""
    lowered = [lower(schedule) for schedule in cells().values()]
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        launches = sum(prove(each).launches for each in lowered)
        best = min(best, (time.thread_time() - start) / launches * 1e6)
    return best
