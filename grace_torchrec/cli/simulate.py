"""``grace-torchrec simulate``: latencies of concurrent queries under RecOS and its rivals."""

import json
from pathlib import Path
from typing import Any

import click

from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.options import Number
from grace_torchrec.cli.places import InPath
from grace_torchrec.schedule.arrivals import PATTERNS, arrivals
from grace_torchrec.schedule.fusing import Workload, fused
from grace_torchrec.schedule.op_stats import CostFile
from grace_torchrec.schedule.roofline import A30, roofline
from grace_torchrec.schedule.simulator import POLICIES, Calibration, simulate
from grace_torchrec.schedule.tracing import op_graph, trace
from grace_torchrec.views.schedule_text import latency_table

RATE = 1000.0
NOT_EVIDENCE = (
    "A simulation: its numbers were fitted to five printed gains; it is no evidence about a GPU."
)


@click.command("simulate")
@click.argument("model")
@click.option("--clients", default="1,8,15,22,30", show_default=True, help="Closed loop: clients.")
@click.option("--open", "pattern", type=click.Choice(sorted(PATTERNS)), help="Open loop instead.")
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    help=f"Open loop: queries a second.  [default: {RATE:g}]",
)
@click.option("--queries", default=14, show_default=True, help="Queries of each client.")
@click.option("--calibration", default="a30", show_default=True, help="Numbers of the machine.")
@click.option("--stats", type=InPath(), help="Cost file (default: estimated).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate_command(
    model: str,
    clients: str,
    pattern: str | None,
    rate: float | None,
    queries: int,
    calibration: str,
    stats: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Simulate concurrent queries of MODEL under six policies."""
    try:
        numbers = [int(part) for part in clients.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--clients {clients!r}: give numbers, 1,8,30.") from error
    if pattern is None and rate is not None:
        raise click.UsageError(
            f"--rate {rate:g}: belongs to the open loop, give --open {'|'.join(sorted(PATTERNS))} too."
        )
    rate = RATE if rate is None else rate
    if min(numbers) < 1 or queries < 1 or not rate > 0:
        raise click.UsageError("--clients, --queries and --rate are above zero.")
    machine = Calibration.named(calibration)
    workload, costs = _workload(model, stats)
    cells: dict[str, dict[str, float]] = {}
    tails: dict[str, dict[str, float]] = {}
    errors: dict[str, float] = {}
    loads: dict[str, dict[str, Any]] = {
        str(number): {"clients": number, "queries_per_client": queries} for number in numbers
    }
    if pattern is not None:
        times = arrivals(pattern, rate, queries * max(numbers))
        loads = {f"{pattern} {rate:g}/s": {"arrivals_us": times}}
    for name, load in loads.items():
        found = {p.name: simulate(workload, p, machine, **load) for p in POLICIES.values()}
        cells[name] = {key: value.mean_us for key, value in found.items()}
        tails[name] = {key: value.p99_us for key, value in found.items()}
        errors[name] = found["RecOS"].monitor_error_us
    if as_json:
        document = {
            "model": model, "mean_us": cells, "p99_us": tails, "monitor_error_us": errors,
            "calibration": calibration, "kind": "simulated", "costs": costs, "not_evidence": NOT_EVIDENCE,
        }  # fmt: skip
        click.echo(json.dumps(document))
        return
    lines = ["simulated mean latency, us", *latency_table(cells, "load")]
    lines += ["simulated 99th percentile, us"]
    lines += [
        *latency_table(tails, "load"),
        "mean error of RecOS's workload monitor, simulated, us",
    ]
    lines += [f"{name:>12} {value:12.1f}" for name, value in errors.items()]
    click.echo("\n".join([*lines, f"costs of operators: {costs}", NOT_EVIDENCE]))


def _workload(model: str, stats: Path | None) -> tuple[Workload, str]:
    """Return the model's operators with given or estimated costs, and where these are from."""
    if stats is not None:
        costs = CostFile.load(stats)
        told = f"{stats}: {costs.stats.source}, {costs.stats.device}"
        return fused(costs.graph, costs.stats), told
    example = load_model(model)
    gm = trace(example.model)
    graph = op_graph(gm, model)
    estimated = roofline(gm, graph, example.batches[0], A30)
    return fused(graph, estimated), f"estimated: {estimated.source}, {estimated.device}"
