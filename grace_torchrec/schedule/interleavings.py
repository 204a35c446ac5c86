"""Interleavings: run a program in many orders and see whether a read finds the wrong value.

Flow: Program -> *did any order go wrong* -> the oracle that the race check must agree with.
Every operator is once held back as long as the streams allow, and random orders are added; a read
is wrong if its address holds another buffer, or another writing of a resource than in the host's
own order.
"""

import random
from collections.abc import Hashable, Sequence

from grace_torchrec.schedule.program import Buffer, HostSync, Launch, Program, Record, Wait

# (operator or None, instances of records it waits for, instance it records or -1)
_Step = tuple[Launch | None, tuple[int, ...], int]


def goes_wrong(
    program: Program, given: Sequence[Buffer] = (), orders: int = 20, seed: int = 0
) -> bool:
    """Return whether some order of the streams reads a wrong value.

    Args:
        program: What the streams are told.
        given: Buffers that are there before it starts.
        orders: Random orders beside one for each operator.
        seed: Of the random orders.
    """
    queues, unrecorded = _queues(program)
    if unrecorded:
        return True
    expected = _run(program, queues, given, None, None)
    if expected is None:
        return True
    rng = random.Random(seed)
    for op in range(program.num_launches):
        if _run(program, queues, given, op, rng) != expected:
            return True
    return any(_run(program, queues, given, -1, rng) != expected for _ in range(orders))


def _queues(program: Program) -> tuple[list[list[tuple[int, _Step]]], bool]:
    """Return each stream's steps with their places in the host's order; and bad waits."""
    queues: list[list[tuple[int, _Step]]] = [[] for _ in range(program.num_streams)]
    last: dict[Hashable, int] = {}
    host: list[int] = []
    bad = False
    for place, instruction in enumerate(program.instructions):
        if isinstance(instruction, Record):
            last[instruction.event] = place
            queues[instruction.stream].append((place, (None, (), place)))
        elif isinstance(instruction, (Wait, HostSync)):
            instance = last.get(instruction.event)
            if instance is None:
                bad = True
            elif isinstance(instruction, Wait):
                queues[instruction.stream].append((place, (None, (instance,), -1)))
            else:
                host.append(instance)
        else:
            queues[instruction.stream].append((place, (instruction, tuple(host), -1)))
    return queues, bad


def _run(
    program: Program,
    queues: list[list[tuple[int, _Step]]],
    given: Sequence[Buffer],
    held: int | None,
    rng: random.Random | None,
) -> list[int | str] | None:
    """Run one order; return what each read saw, or None where a buffer was not there.

    ``held`` None is the host's order; an operator's number holds it back; -1 is random.
    """
    at = [0] * len(queues)
    done: set[int] = set()
    memory: dict[Hashable, tuple[Buffer, int]] = {
        program.address_of.get(buffer, buffer): (buffer, -1) for buffer in given
    }
    seen: dict[tuple[int, int], int] = {}
    bias = [rng.random() ** 2 + 1e-3 if rng else 1.0 for _ in queues]
    numbers = {p: k for k, p in enumerate(_launches(program))}
    left = sum(map(len, queues))
    while left:
        ready = [
            s
            for s, queue in enumerate(queues)
            if at[s] < len(queue) and all(w in done for w in queue[at[s]][1][1])
        ]
        stream = _pick(ready, queues, at, numbers, held, bias, rng)
        place, (op, _, recorded) = queues[stream][at[stream]]
        at[stream] += 1
        left -= 1
        if recorded >= 0:
            done.add(recorded)
        if op is None:
            continue
        for k, buffer in enumerate(op.reads):
            found = memory.get(program.address_of.get(buffer, buffer))
            if found is None or found[0] != buffer:
                return None
            seen[(place, k)] = found[1]
        for buffer in op.writes:
            memory[program.address_of.get(buffer, buffer)] = (buffer, place)
    left_over = sorted(repr(item) for item in memory.items())
    return [*(seen[key] for key in sorted(seen)), *left_over]


def _launches(program: Program) -> list[int]:
    """Return the places of the operators."""
    return [p for p, i in enumerate(program.instructions) if isinstance(i, Launch)]


def _pick(
    ready: list[int],
    queues: list[list[tuple[int, _Step]]],
    at: list[int],
    numbers: dict[int, int],
    held: int | None,
    bias: list[float],
    rng: random.Random | None,
) -> int:
    """Choose the next stream."""
    if held is None or rng is None:
        return min(ready, key=lambda s: queues[s][at[s]][0])
    if held >= 0:
        free = [s for s in ready if numbers.get(queues[s][at[s]][0]) != held]
        ready = free or ready
    return rng.choices(ready, [bias[s] for s in ready])[0]
