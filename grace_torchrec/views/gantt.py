"""A schedule as a Gantt chart in SVG.

Flow: Schedule -> *SVG text*: a row a stream, a box an operator, colours by kind, an arrow a wait, a
line before which no schedule can end.  Boxes say name, time and needs when pointed at.
"""

import math
from html import escape

from grace_torchrec.schedule.schedule import Schedule

WIDTH, ROW, LEFT, TOP, RIGHT = 1200, 36, 76, 52, 24
COLOURS = {  # dark enough for white letters
    "embedding": "#2f6ca8",
    "gemm": "#b4621a",
    "elementwise": "#3f7d3f",
    "other": "#6b6b6b",
}
LETTER = 6.4  # pixels of a letter of 11 pixels
FEWEST_LETTERS = 3  # a shorter piece of a name says nothing
MOST_TICKS = 10


def gantt(schedule: Schedule) -> str:
    """Return the SVG of a schedule.

    Args:
        schedule: What to show.
    """
    span = max(schedule.makespan_us, 1e-9)
    scale = (WIDTH - LEFT - RIGHT) / span
    bottom = TOP + ROW * schedule.num_streams
    height = bottom + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        '<defs><marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#222"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{_title(schedule)}</text>',
        *_axis(span, scale, bottom),
    ]
    for stream in range(schedule.num_streams):
        y = TOP + ROW * stream
        parts.append(f'<text x="8" y="{y + 22}">stream {stream}</text>')
        parts.append(
            f'<line x1="{LEFT}" y1="{y + ROW}" x2="{WIDTH - RIGHT}" y2="{y + ROW}" stroke="#ddd"/>'
        )
    parts += [_box(schedule, op, scale) for op in range(len(schedule.graph.ops))]
    parts += [
        _wait(schedule, need, op, scale)
        for op, needs in enumerate(schedule.waits_n)
        for need in needs
    ]
    x = LEFT + schedule.bound_us * scale
    parts.append(
        f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom + 14}" stroke="#c00"/>'
        f'<text x="{x - 4:.1f}" y="{bottom + 14}" fill="#c00" text-anchor="end">bound</text>'
    )
    return "\n".join([*parts, *_legend(schedule, bottom + 24), "</svg>"]) + "\n"


def _title(schedule: Schedule) -> str:
    """Return what the chart is of, and how good it is."""
    one = sum(schedule.times_us)
    return escape(
        f"{schedule.graph.name}: predicted {schedule.makespan_us:.1f} us on {schedule.num_streams} "
        f"streams, bound {schedule.bound_us:.1f} us, one stream {one:.1f} us"
    )


def _axis(span: float, scale: float, bottom: int) -> list[str]:
    """Return grid lines at round times, with their numbers."""
    power = 10.0 ** math.floor(math.log10(span / MOST_TICKS))
    step = next(power * k for k in (1, 2, 5, 10) if span <= power * k * MOST_TICKS)
    ticks = [step * k for k in range(int(span / step) + 1)]
    parts = []
    for tick in ticks:
        x = LEFT + tick * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#eee"/>'
            f'<text x="{x + 2:.1f}" y="{TOP - 10}" fill="#777">{tick:g} us</text>'
        )
    return parts


def _legend(schedule: Schedule, y: int) -> list[str]:
    """Return the colours of the kinds that occur."""
    x, parts = LEFT, []
    used = {op.kind for op in schedule.graph.ops}
    for kind in (kind for kind in COLOURS if kind in used):
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 10}">{kind}</text>')
        x += 110
    parts.append(
        f'<line x1="{x}" y1="{y + 6}" x2="{x + 20}" y2="{y + 6}" stroke="#222" '
        f'stroke-dasharray="3 2" marker-end="url(#tip)"/><text x="{x + 26}" y="{y + 10}">wait</text>'
    )
    return parts


def _box(schedule: Schedule, op: int, scale: float) -> str:
    """Return one operator."""
    x = LEFT + schedule.begin_us[op] * scale
    width = max(schedule.times_us[op] * scale, 0.5)
    y = TOP + ROW * schedule.stream_n[op] + 4
    found = schedule.graph.ops[op]
    needs = ", ".join(schedule.graph.ops[need].name for need in found.needs) or "inputs"
    told = escape(f"{found.name}: {schedule.times_us[op]:.1f} us, needs {needs}")
    box = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 8}" '
        f'fill="{COLOURS[found.kind]}" stroke="#fff" stroke-width="0.6"><title>{told}</title></rect>'
    )
    letters = int((width - 6) / LETTER)
    if letters < FEWEST_LETTERS:
        return box
    fits = escape(found.name if len(found.name) <= letters else found.name[: letters - 1] + "~")
    return box + (
        f'<text x="{x + 3:.1f}" y="{y + 18}" fill="#fff" pointer-events="none">{fits}</text>'
    )


def _wait(schedule: Schedule, need: int, op: int, scale: float) -> str:
    """Return the arrow of one wait."""
    x1 = LEFT + (schedule.begin_us[need] + schedule.times_us[need]) * scale
    x2 = LEFT + schedule.begin_us[op] * scale
    y1, y2 = (TOP + ROW * schedule.stream_n[k] + ROW // 2 for k in (need, op))
    y2 += 14 if y2 < y1 else -14  # the edge of the box
    return (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="#222" '
        'stroke-dasharray="3 2" marker-end="url(#tip)"/>'
    )
