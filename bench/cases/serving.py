"""serving: a model is converted, saved, loaded and given deltas while threads read it.

Flow: generated bags -> plan -> ``convert`` (timed) -> error against the float model, beside that of
TorchRec's own quantiser -> ``save`` -> ``load_served`` (timed) -> deltas under four readers, whose
longest read is told beside the longest one without deltas; the last version against a full rebuild.
Ratios and equalities are exact; times are those of this machine.
"""

import copy
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.inference.modules import quantize_inference_model

import grace_torchrec as grace
from bench.run import emit
from grace_torchrec.traces.synthetic import generate

QUANTISED = {"fp16": torch.float16, "int8": torch.int8, "int4": torch.quint4x2}
BATCH = 256
READERS = 4
DELTA_ROWS = 1000


def serving(items: int, users: int, dim: int, deltas: int, seed: int) -> dict[str, Any]:
    """Run the case; return its fields.

    Args:
        items: Rows of the table.
        users: Bags of the generated trace.
        dim: Values of a row.
        deltas: Deltas that are published while threads read.
        seed: Of rows, bags and deltas.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(EmbeddingBagCollection(tables=[_table(items, dim)])).eval()
    nn.init.normal_(model[0].embedding_bags["t_item"].weight)
    bags = _bags(items, users, seed)
    split = len(bags) * 4 // 5
    profile = grace.profile(bags[:split], model)
    begin = time.perf_counter()
    plan = grace.plan(
        model, profile, grace.MemoryModel.named("a40"), grace.PlanOptions(lookup="fused")
    )
    plan_s = time.perf_counter() - begin
    table = plan.tables["0.t_item"]
    found: dict[str, Any] = {
        "items": items,
        "dim": dim,
        "sums": 0 if table.sums is None else table.sums.num_sums,
        "cut": table.predicted.cut,
        "plan_s": plan_s,
    }
    held_out = bags[split:]
    found["errors"] = [_errors(model, plan, held_out, kind) for kind in QUANTISED]
    found["files"] = [_files(model, plan, plan_s, held_out[0], kind) for kind in ("table", "int8")]
    found["deltas"] = [_deltas(model, plan, held_out[0], deltas, slots) for slots in (1, 2)]
    return found


def _table(items: int, dim: int) -> EmbeddingBagConfig:
    """Return the one table."""
    return EmbeddingBagConfig(
        name="t_item", num_embeddings=items, embedding_dim=dim, feature_names=["item"]
    )


def _bags(items: int, users: int, seed: int) -> list[KeyedJaggedTensor]:
    """Return the bags of a generated trace in batches."""
    trace = generate(items, users, seed)
    lengths = torch.from_numpy(trace.offsets_B1).diff()
    ids = torch.from_numpy(trace.ids_L).long().split(lengths.tolist())
    return [
        KeyedJaggedTensor(
            keys=["item"],
            values=torch.cat(ids[first : first + BATCH]),
            lengths=lengths[first : first + BATCH],
        )
        for first in range(0, len(ids) - BATCH + 1, BATCH)
    ]


@torch.no_grad()
def _errors(
    model: nn.Module, plan: grace.Plan, batches: list[KeyedJaggedTensor], row_dtype: str
) -> dict[str, Any]:
    """Return the error against the float model, ours over that of TorchRec's own quantiser."""
    served = grace.convert(model, plan, example=(batches[0],), row_dtype=row_dtype)
    stock = quantize_inference_model(copy.deepcopy(model), quantization_dtype=QUANTISED[row_dtype])
    wanted = torch.cat([model(batch).values() for batch in batches])
    errors = [
        torch.cat([one(batch).values().float() for batch in batches]) - wanted
        for one in (served, stock)
    ]
    rms = [float(error.pow(2).mean().sqrt()) for error in errors]
    largest = [float(error.abs().max()) for error in errors]
    return {
        "row_dtype": row_dtype,
        "rms_over_stock": rms[0] / rms[1],
        "largest_over_stock": largest[0] / largest[1],
    }


def _files(
    model: nn.Module, plan: grace.Plan, plan_s: float, batch: KeyedJaggedTensor, row_dtype: str
) -> dict[str, Any]:
    """Return the seconds that converting and loading take; both answers must be equal."""
    grace.convert(model, plan, example=(batch,), row_dtype=row_dtype)  # kernels are compiled now
    served = grace.convert(model, plan, example=(batch,), row_dtype=row_dtype)
    structure = copy.deepcopy(model).to("meta")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        served.save(Path(folder) / "served")
        save_s = time.perf_counter() - begin
        loaded = grace.load_served(Path(folder) / "served", structure, example=(batch,))
        _require(loaded(batch), served(batch), "what was loaded answers otherwise")
        return {
            "row_dtype": row_dtype,
            "convert_s": served.build_s,
            "save_s": save_s,
            "reload_s": loaded.build_s,
            "reload_over_convert": loaded.build_s / served.build_s,
            "reload_over_plan_and_convert": loaded.build_s / (plan_s + served.build_s),
        }


def _deltas(
    model: nn.Module, plan: grace.Plan, batch: KeyedJaggedTensor, deltas: int, slots: int
) -> dict[str, Any]:
    """Publish deltas while threads read; the last version must be that of a full rebuild."""
    trained = copy.deepcopy(model)
    served = grace.convert(trained, plan, example=(batch,), row_dtype="int8", slots=slots)
    weight = trained[0].embedding_bags["t_item"].weight
    quiet_s = max(_while_reading(served, batch, lambda: time.sleep(1.0)))
    publish_s: list[float] = []

    def publish() -> None:
        """Give new rows to the model and to what is served."""
        for _ in range(deltas):
            ids = torch.randperm(weight.shape[0])[:DELTA_ROWS]
            rows = torch.randn(ids.numel(), weight.shape[1])
            begin = time.perf_counter()
            grace.publish_delta(served, {"t_item": (ids, rows)})
            publish_s.append(time.perf_counter() - begin)
            with torch.no_grad():
                weight[ids] = rows

    longest_s = max(_while_reading(served, batch, publish))
    rebuilt = grace.convert(trained, plan, example=(batch,), row_dtype="int8")
    _require(served(batch), rebuilt(batch), "deltas differ from a full rebuild")
    publish_s.sort()
    return {
        "slots": slots,
        "deltas": deltas,
        "rows_each": min(DELTA_ROWS, weight.shape[0]),
        "publish_ms": 1e3 * publish_s[len(publish_s) // 2],
        "longest_read_ms": 1e3 * longest_s,
        "longest_read_without_deltas_ms": 1e3 * quiet_s,
    }


def _while_reading(served: grace.Served, batch: KeyedJaggedTensor, work: Any) -> list[float]:
    """Do some work while threads read; return the seconds of every read."""
    seconds: list[float] = []
    done = threading.Event()

    def read() -> None:
        """Read until the work is done."""
        while not done.is_set():
            begin = time.perf_counter()
            served(batch)
            seconds.append(time.perf_counter() - begin)

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        work()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    return seconds


def _require(found: Any, wanted: Any, otherwise: str) -> None:
    """Report nothing about answers that are not equal.

    Raises:
        RuntimeError: they differ.
    """
    if not torch.equal(found.values(), wanted.values()):
        raise RuntimeError(otherwise)


@click.command(name="serving", help=__doc__)
@click.option("--items", type=click.IntRange(min=100), default=20_000, show_default=True)
@click.option("--users", type=click.IntRange(min=2_560), default=20_000, show_default=True)
@click.option("--dim", type=click.IntRange(min=4), default=64, show_default=True)
@click.option("--deltas", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(items: int, users: int, dim: int, deltas: int, seed: int, as_json: bool) -> None:
    """Parse, run, print."""
    emit({**serving(items, users, dim, deltas, seed), "seed": seed}, as_json, "serving")
