"""recorder: what a TraceRecorder adds to a forward, from its first batch or in a long stream.

Flow: a TorchRec DLRM of one history (bags shaped as ml1m: 3,706 items, 30..330 ids) and eight short
features, and its copy with a recorder attached -> the recorder sees ``--seen`` batches (not timed, each
looked at) -> rounds of batches with the one and the other, in turns.  ``ratio`` is with over without, round by round; its interval is the
2.5 % and 97.5 % quantile of the median over rounds drawn again.  ``share_of_time`` is what the recorder
says that it took of the rounds in which it was attached.
"""

import copy
import tempfile
import time
from functools import partial
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from bench.measure import machine
from bench.run import emit
from grace_torchrec.timing import interleave
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.synthetic import generate

Batches = list[tuple[torch.Tensor, KeyedJaggedTensor]]
ITEMS, SHORT, SHORT_ROWS, DIM, NUM_DENSE, DRAWS = 3706, 8, 1000, 64, 13, 2000


def recorder_cost(
    batch: int, seen: int, rounds: int, each: int, max_bags: int, max_overhead: float, seed: int
) -> dict[str, Any]:
    """Measure; return the fields of the case.

    Args:
        batch: Bags of a feature in a batch.
        seen: Batches before the first that is timed.
        rounds: Timed rounds.
        each: Batches of a round.
        max_bags: See ``TraceRecorder``.
        max_overhead: See ``TraceRecorder``; 0: None.
        seed: Of all draws.
    """
    torch.manual_seed(seed)
    model = _model()
    batches = _batches(batch, seed)
    watched = copy.deepcopy(model)
    recorder = _after(seen, watched, batches, max_overhead or None, max_bags=max_bags, seed=seed)
    state = recorder.stats
    recorder.attach()

    def run(answering: nn.Module) -> None:
        """Answer some batches."""
        with torch.no_grad():
            for turn in range(each):
                answering(*batches[turn % len(batches)])

    def recorded() -> None:
        """Answer them with the recorder attached."""
        begin = time.perf_counter()
        run(watched)
        attached_s.append(time.perf_counter() - begin)

    attached_s: list[float] = []
    times = interleave({"without": partial(run, model), "with": recorded}, rounds)
    ratios = times["with"].over(times["without"])
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(ratios.values_R, (DRAWS, rounds)), axis=1)
    stats = recorder.stats
    return {
        "max_overhead": max_overhead, "batch": batch, "bags_seen": state.bags_seen, "bags_held": state.bags_held,
        "bytes_held": state.bytes_held, "max_bytes": recorder.max_bytes,
        "without_ms": times["without"].median / each * 1e3, "ratio": ratios.summary(),
        "interval": np.quantile(medians, [0.025, 0.975]).tolist(), "rounds": rounds,
        "batches": len(attached_s) * each, "batches_passed": stats.batches_passed,
        "share_of_time": stats.seconds_spent / sum(attached_s),
        "observe_cpu_us": _observe_us(recorder, batches, each),
        "batches_dropped": stats.batches_dropped, "machine": machine(),
    }  # fmt: skip


def _after(
    seen: int, model: nn.Module, batches: Batches, max_overhead: float | None, **options: Any
) -> TraceRecorder:
    """Return a recorder with the sample of one that has looked at ``seen`` batches."""
    before = TraceRecorder(model, max_overhead=None, min_support=1, **options)
    for turn in range(seen):
        before.observe(batches[turn % len(batches)][1])
    with tempfile.TemporaryDirectory() as folder:
        before.save(f"{folder}/seen")
        return TraceRecorder.resume(f"{folder}/seen", model, max_overhead=max_overhead, **options)


def _observe_us(recorder: TraceRecorder, batches: Batches, each: int) -> float:
    """Return the CPU time of one batch after the other, nothing between them."""
    begin = time.process_time()
    for turn in range(each):
        recorder.observe(batches[turn % len(batches)][1])
    return (time.process_time() - begin) / each * 1e6


def _model() -> nn.Module:
    """Return a DLRM in eval mode."""
    sizes = {"history": ITEMS, **{f"short_{k}": SHORT_ROWS for k in range(SHORT)}}
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}", num_embeddings=rows, embedding_dim=DIM, feature_names=[name]
        )
        for name, rows in sizes.items()
    ]
    collection = EmbeddingBagCollection(tables=tables)
    return DLRM(collection, NUM_DENSE, [512, 256, DIM], [512, 256, 1]).eval()


def _batches(batch: int, seed: int) -> Batches:
    """Return 20 batches."""
    trace = generate(ITEMS, 20 * batch, seed, pooling=(30, 330))
    rng, found = np.random.default_rng(seed), []
    for first in range(0, trace.num_bags, batch):
        part = trace.take(np.arange(first, first + batch))
        short = rng.integers(0, SHORT_ROWS, SHORT * batch)
        bags = KeyedJaggedTensor(
            keys=["history", *(f"short_{k}" for k in range(SHORT))],
            values=torch.from_numpy(np.concatenate([part.ids_L.astype(np.int64), short])),
            lengths=torch.cat(
                [torch.from_numpy(part.offsets_B1).diff(), torch.ones(SHORT * batch).long()]
            ),
        )
        found.append((torch.randn(batch, NUM_DENSE), bags))
    return found


@click.command(name="recorder", help=__doc__)
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--seen", type=click.IntRange(min=0), default=20_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--each", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--max-bags", type=click.IntRange(min=1), default=8192, show_default=True)
@click.option(
    "--max-overhead",
    type=click.FloatRange(min=0, max=1, max_open=True),
    default=0.005,
    show_default=True,
    help="Share of the wall time; 0: no bound.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    batch: int, seen: int, rounds: int, each: int, max_bags: int, max_overhead: float, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Parse, measure, print."""
    found = recorder_cost(batch, seen, rounds, each, max_bags, max_overhead, seed)
    emit(found, as_json, "recorder")
