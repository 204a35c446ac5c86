"""A schedule as a Gantt chart in SVG.

Flow: Schedule -> *SVG text*: a row a stream, a box an operator, colours by kind, a line a wait.
"""

from html import escape

from grace_torchrec.schedule.schedule import Schedule

WIDTH, ROW, LEFT, TOP = 1000, 34, 80, 30
COLOURS = {
    "embedding": "#3b78b4",
    "gemm": "#d9822b",
    "elementwise": "#5b9e5b",
    "other": "#888888",
}
WIDE_ENOUGH = 46  # pixels from which a name fits into a box


def gantt(schedule: Schedule) -> str:
    """Return the SVG of a schedule.

    Args:
        schedule: What to show.
    """
    span = max(schedule.makespan_us, 1e-9)
    scale = (WIDTH - LEFT - 10) / span
    height = TOP + ROW * schedule.num_streams + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<text x="{LEFT}" y="16">{escape(schedule.graph.name)}: {schedule.makespan_us:.1f} us, '
        f"bound {schedule.bound_us:.1f} us</text>",
    ]
    for stream in range(schedule.num_streams):
        y = TOP + ROW * stream
        parts.append(f'<text x="6" y="{y + 20}">stream {stream}</text>')
        parts.append(
            f'<line x1="{LEFT}" y1="{y + ROW}" x2="{WIDTH}" y2="{y + ROW}" stroke="#ddd"/>'
        )
    parts += [_box(schedule, op, scale) for op in range(len(schedule.graph.ops))]
    parts += [
        _wait(schedule, need, op, scale)
        for op, needs in enumerate(schedule.waits_n)
        for need in needs
    ]
    x = LEFT
    for kind, colour in COLOURS.items():
        y = height - 24
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 10}">{kind}</text>')
        x += 110
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(schedule: Schedule, op: int, scale: float) -> str:
    """Return one operator."""
    x = LEFT + schedule.begin_us[op] * scale
    width = max(schedule.times_us[op] * scale, 0.5)
    y = TOP + ROW * schedule.stream_n[op] + 4
    name, kind = escape(schedule.graph.ops[op].name), schedule.graph.ops[op].kind
    box = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 8}" '
        f'fill="{COLOURS[kind]}" stroke="#fff"><title>{name}: '
        f"{schedule.times_us[op]:.1f} us</title></rect>"
    )
    if width < WIDE_ENOUGH:
        return box
    fits = name[: int(width / 7)]
    return box + f'<text x="{x + 3:.1f}" y="{y + 17}" fill="#fff">{fits}</text>'


def _wait(schedule: Schedule, need: int, op: int, scale: float) -> str:
    """Return the line of one wait."""
    x1 = LEFT + (schedule.begin_us[need] + schedule.times_us[need]) * scale
    x2 = LEFT + schedule.begin_us[op] * scale
    y1, y2 = (TOP + ROW * schedule.stream_n[k] + ROW // 2 for k in (need, op))
    return (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="#333" '
        'stroke-dasharray="3 2"/>'
    )
