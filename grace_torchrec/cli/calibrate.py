"""``grace-torchrec calibrate``: measure this machine for plans: its memories, and lookups on a CPU."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from grace_sharding.calibration import ROUNDS, Calibration, is_loaded
from grace_torchrec.calibration.machine import calibrate
from grace_torchrec.cli.places import MEMORY, OutPath
from grace_torchrec.views.numbers import bytes_text, known, seconds_text


@click.command(name="calibrate")
@click.option(
    "-o",
    "--out",
    type=OutPath(MEMORY),
    help="Write the memory model here, for plan --memory FILE.",
)
@click.option("--row-bytes", default=256, show_default=True, help="Bytes of the rows gathered.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; busy_because, where not null, says why to measure again.",
)
def calibrate_command(out: Path | None, row_bytes: int, as_json: bool) -> None:
    """Measure how fast the memories of this machine are read, and on a CPU what lookups cost.

    Takes some ten seconds and, without a GPU, 3.5 GB of memory.
    """
    found = calibrate(row_bytes)
    if out is not None:
        found.save(out)
    if as_json:
        click.echo(json.dumps({**asdict(found), "beta": found.memory.beta, **_busy(found)}))
    else:
        click.echo("\n".join(_lines(found, out)))


def _busy(found: Calibration) -> dict[str, Any]:
    """Tell whether the machine was busy with something else, by its rounds or by its load, and why."""
    because = None
    if found.unsteady:
        because = f"rounds of {', '.join(found.unsteady)} differ too much"
    elif is_loaded(found.load, found.cores):
        because = f"{found.load:.1f} processes wanted its {found.cores} cores"
    return {"busy": because is not None, "busy_because": because}


def _lookups(found: Calibration) -> str:
    """Say what one core takes for an id, stock and with ids rewritten in line."""
    ns = found.lookup_ns
    return (
        f"{'lookups':>12}  one core, ns an id: rows of 256 bytes {ns['near']:.1f} from the cache, "
        f"{ns['far']:.1f} from memory, of 1,024 bytes {ns['wide']:.1f}; with sums that save 40 % of the "
        f"reads, rewritten in line, rows of 256 bytes {ns['near_ours']:.1f} and {ns['far_ours']:.1f}"
    )


def _lines(found: Calibration, out: Path | None) -> list[str]:
    """Say what was measured, what was not, and what to do next."""
    lines = [
        f"measured: the fastest of {ROUNDS} rounds (behind it, what 20 and 80 % of them stay under); "
        f"load before {known(found.load)} on {found.cores} cores"
    ]
    for name, rate in found.bytes_per_s.items():
        low, high = (value / 1e9 for value in found.spread[name])
        lines.append(f"{name:>12}  {rate / 1e9:8.1f} GB/s  ({low:.1f} to {high:.1f})")
    busy = _busy(found)
    if busy["busy"]:
        lines.append(
            f"the machine was busy: {busy['busy_because']}; calibrate again when it is idle"
        )
    if found.memory.cache_bytes is not None:
        size = bytes_text(found.memory.cache_bytes)
        lines.append(f"  last cache  {size}, as the system says")
    if found.memory.lookup_costs is not None:
        lines.append(_lookups(found))
    if found.memory.launch_s is not None:
        lines.append(f"one more kernel on a stream {seconds_text(found.memory.launch_s)}")
    lines += [f"not measured: {reason}" for reason in found.unmeasured]
    if found.memory.hbm is not None:
        lines.append(f"beta {found.memory.beta:.3f} (host over HBM)")
    if out is not None:
        lines.append(
            f"written to {out}; use it with: grace-torchrec plan MODEL --profile P --memory {out}"
        )
    return lines
