"""In flight: several queries of one lowered model share streams, caches and weights.

Flow: Lowered -> *product program* of 1..3 queries -> races.  Buffers and events belong to a query,
resources (mutable caches, weights under delta) to all.  The host threads of the queries may tell
the streams anything in any order: one after the other, in turns, and turns of random length are
tried.  Derived: the paper states that embedding inference is mutable; that three queries are
enough is a test, not a theorem.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from grace_torchrec.schedule.lower import Lowered
from grace_torchrec.schedule.program import Instruction, Program
from grace_torchrec.schedule.race_check import Race, find_races
from grace_torchrec.schedule.telling import to_program

MOST_QUERIES, RANDOM_ORDERS = 3, 3


@dataclass(frozen=True)
class Proof:
    """What was checked, and what was found.

    Attributes:
        programs: Programs checked.
        launches: Operators in them.
        races: Races found; none is the proof.
    """

    programs: int
    launches: int
    races: tuple[Race, ...]


def prove(lowered: Lowered, queries: int = MOST_QUERIES, seed: int = 0) -> Proof:
    """Check the lowered steps alone and with up to ``queries`` queries in flight.

    Args:
        lowered: The steps that are in the GraphModule.
        queries: Queries in flight at most.
        seed: Of the random host orders.
    """
    programs, launches, races = 0, 0, []
    for number in range(1, queries + 1):
        parts = [to_program(lowered, query) for query in range(number)]
        for program in products(parts, seed):
            programs += 1
            launches += program.num_launches
            races += find_races(program, resources(lowered))
    return Proof(programs, launches, tuple(races))


def resources(lowered: Lowered) -> list[str]:
    """Return the resources of a graph: they are there before any query starts."""
    ops = lowered.schedule.graph.ops
    return sorted({name for op in ops for name in (*op.reads, *op.writes)})


def products(parts: Sequence[Program], seed: int = 0) -> list[Program]:
    """Return programs that tell the streams all parts, in several orders of the host threads.

    Args:
        parts: One program a query; their buffers and events differ.
        seed: Of the random orders.
    """
    if len(parts) == 1:
        return [parts[0]]
    rng = random.Random(seed)
    return [_merged(parts, None), _merged(parts, 1)] + [
        _merged(parts, rng.randint(2, 9), rng) for _ in range(RANDOM_ORDERS)
    ]


def _merged(
    parts: Sequence[Program], turn: int | None, rng: random.Random | None = None
) -> Program:
    """Return the parts' instructions in turns: None is one part after the other."""
    left = [list(reversed(part.instructions)) for part in parts]
    told: list[Instruction] = []
    place = 0
    while any(left):
        place = rng.randrange(len(left)) if rng else place % len(left)
        queue = left[place]
        length = len(queue) if turn is None else rng.randint(1, turn) if rng else turn
        told.extend(queue.pop() for _ in range(min(length, len(queue))))
        place += 1
    address = {buffer: where for part in parts for buffer, where in part.address_of.items()}
    return Program(tuple(told), address)
