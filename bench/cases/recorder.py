"""recorder: what a TraceRecorder adds to a forward, at the rate at which a long stream is sampled.

Flow: a TorchRec DLRM of one history (bags shaped as ml1m: 3,706 items, 30..330 ids) and eight short
features -> the recorder sees ``--seen`` batches (not timed) -> rounds of batches with and without its
hooks, in turns.  ``ratio`` is with over without, round by round; its interval is the 2.5 % and 97.5 %
quantile of the median over rounds drawn again.
"""

import time
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

ITEMS, SHORT, SHORT_ROWS, DIM, NUM_DENSE, DRAWS = 3706, 8, 1000, 64, 13, 2000


def recorder_cost(
    batch: int, seen: int, rounds: int, each: int, max_bags: int, seed: int
) -> dict[str, Any]:
    """Measure; return the fields of the case.

    Args:
        batch: Bags of a feature in a batch.
        seen: Batches before the first that is timed.
        rounds: Timed rounds.
        each: Batches of a round.
        max_bags: See ``TraceRecorder``.
        seed: Of all draws.
    """
    torch.manual_seed(seed)
    model = _model()
    batches = _batches(batch, seed)
    recorder = TraceRecorder(model, max_bags=max_bags, seed=seed)
    for turn in range(seen):
        recorder.observe(batches[turn % len(batches)][1])
    state = recorder.stats

    def run() -> None:
        """Answer some batches."""
        with torch.no_grad():
            for turn in range(each):
                model(*batches[turn % len(batches)])

    def recorded() -> None:
        """Answer them with the recorder attached."""
        with recorder.attach():
            run()

    times = interleave({"without": run, "with": recorded}, rounds)
    ratios = times["with"].over(times["without"])
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(ratios.values_R, (DRAWS, rounds)), axis=1)
    begin = time.process_time()
    for turn in range(each):
        recorder.observe(batches[turn % len(batches)][1])
    return {
        "batch": batch, "bags_seen": state.bags_seen, "bags_held": state.bags_held,
        "bytes_held": state.bytes_held, "max_bytes": recorder.max_bytes,
        "without_ms": times["without"].median / each * 1e3, "ratio": ratios.summary(),
        "interval": np.quantile(medians, [0.025, 0.975]).tolist(), "rounds": rounds,
        "observe_cpu_us": (time.process_time() - begin) / each * 1e6,
        "batches_dropped": recorder.stats.batches_dropped, "machine": machine(),
    }  # fmt: skip


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


def _batches(batch: int, seed: int) -> list[tuple[torch.Tensor, KeyedJaggedTensor]]:
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
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    batch: int, seen: int, rounds: int, each: int, max_bags: int, seed: int, as_json: bool
) -> None:
    """Parse, measure, print."""
    emit(recorder_cost(batch, seen, rounds, each, max_bags, seed), as_json, "recorder")
