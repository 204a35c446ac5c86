"""Schedules and simulations as text.

Flow: Scheduled or simulated cells -> *lines* -> command line.
"""

from collections.abc import Mapping, Sequence

from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.schedule import Schedule
from grace_torchrec.schedule.stream_pass import Scheduled
from grace_torchrec.views.numbers import known

MOST_ROWS = 60
PAD = " " * 19


def schedule_lines(result: Scheduled) -> list[str]:
    """Return the schedule, its makespan against its bound, events, and the proof.

    Args:
        result: What the pass returned.
    """
    if result.schedule is None:
        return [f"not scheduled: {result.reason}"]
    schedule = result.schedule
    lines = ["begin, predicted; stream; cost; kind; operator", *_operators(schedule)]
    lines = lines if result.modified else []
    lines += [
        f"operators          {len(schedule.graph.ops)}, "
        f"{schedule.graph.parallel_share():.0%} can run beside another",
        f"streams            {schedule.num_streams} of {schedule.machine.streams}",
        *cost_lines(result.stats),
        f"makespan           predicted {schedule.makespan_us:.1f} us, "
        f"{schedule.makespan_us / max(schedule.bound_us, 1e-9):.3f} of the bound "
        f"{schedule.bound_us:.1f} us; one stream {sum(schedule.times_us):.1f} us; by these costs, "
        "not measured",
    ]
    if result.lowered is not None:
        figures = result.lowered.figures
        lines.append(
            f"for each operator  {figures['events_per_op']:.2f} events, "
            f"{figures['waits_per_op']:.2f} waits, {figures['switches_per_op']:.2f} switches"
        )
    if result.proof is not None:
        lines.append(
            f"race check         {len(result.proof.races)} races in {result.proof.programs} "
            f"programs of {result.proof.launches} launches"
        )
    if result.reason:
        lines.append(f"single stream      {result.reason}")
    return lines


def cost_lines(stats: OpStats | None) -> list[str]:
    """Return where the costs of operators are from, and what weakens them.

    Args:
        stats: The costs; None where they are not known.
    """
    if stats is None:
        return []
    word = "estimated" if stats.source == "roofline" else "measured"
    lines = [f"costs              {word}: {stats.source}, {stats.device}"]
    timed = stats.timed
    if timed is None:
        if word == "measured":
            lines.append(f"{PAD}spread and load are not known")
        return lines
    lines.append(
        f"{PAD}shortest of {timed.rounds} rounds each; whole rounds "
        f"{timed.median_us:.1f} us ({timed.q20_us:.1f} to {timed.q80_us:.1f}, 20 to 80 %), least "
        f"{timed.least_us:.1f}; load before {known(timed.load)} on {timed.cores} cores"
    )
    if timed.unsteady:
        lines.append(f"{PAD}the machine was busy: measure again before you trust them")
    return lines


def _operators(schedule: Schedule) -> Sequence[str]:
    """Return a line for each operator, in the host's order; the middle of a long list is left out."""
    rows = [
        f"{schedule.begin_us[op]:10.1f} us  stream {schedule.stream_n[op]}  "
        f"{schedule.times_us[op]:8.1f} us  {schedule.graph.ops[op].kind:<11}  "
        f"{schedule.graph.ops[op].name}"
        for op in schedule.order_n
    ]
    if len(rows) > MOST_ROWS:
        half = MOST_ROWS // 2
        rows = [*rows[:half], f"  ... {len(rows) - 2 * half} more ...", *rows[-half:]]
    return rows


def latency_table(cells: Mapping[str, Mapping[str, float]], corner: str) -> list[str]:
    """Return a table: rows are the keys of ``cells``, columns those of its values.

    Args:
        cells: Row -> column -> number.
        corner: Heading of the first column.
    """
    columns = list(next(iter(cells.values()), {}))
    lines = [f"{corner:>12} " + " ".join(f"{name:>12}" for name in columns)]
    for row, values in cells.items():
        lines.append(f"{row:>12} " + " ".join(f"{values[name]:>12.1f}" for name in columns))
    return lines
