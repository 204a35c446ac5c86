"""One command that compares fbgemm's ways to read host memory with ours, on a machine with CUDA.

    python3 bench/gpu_check_fbgemm.py --budget 300 --out DIR
    TRITON_INTERPRET=1 python3 bench/gpu_check_fbgemm.py --dry-run --out DIR     (tiny, no GPU)

Needs torch, fbgemm-gpu and torchrec of one row of docs/installing.md.  Flow: environment, kernels as a
plan builds them, a converted model against its own float rows, then times of one large table: in host
memory (mapped and managed), behind a cache in HBM, and ours: residual rows from host memory beside
stored sums in HBM, with the same bytes of HBM for the cache and for the sums.  Each result is one JSON
line on stdout and in ``DIR/gpu_check.jsonl``; a stage that no longer fits the budget is left out and
said.  Exit 1 if a check said no or a stage broke, 3 if none did but a stage was left out for time.
Shapes: B bags of P ids, D dimension, N items, R stored rows.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "triton_kernels"), str(ROOT / "sharding")]

from fbgemm_gpu.split_embedding_configs import SparseType  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (  # noqa: E402
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor  # noqa: E402

import grace_torchrec as grace  # noqa: E402
from bench.gpu_data import Table, make_bags, make_table  # noqa: E402
from bench.gpu_run import Run, median_us, run_stages, started  # noqa: E402
from grace_kernels import cpu, ops  # noqa: E402
from grace_torchrec.serve.cache_stats import cache_stats  # noqa: E402
from grace_torchrec.serve.row_types import pack_rows  # noqa: E402
from grace_torchrec.serve.sharding import Spread  # noqa: E402
from grace_torchrec.serve.table_pieces import batches_of  # noqa: E402
from grace_torchrec.traces.synthetic import generate  # noqa: E402

ROW_TYPES = {"fp16": SparseType.FP16, "int8": SparseType.INT8}
DIM, POOLING = 64, 60


def environment(run: Run) -> None:
    """Say what the figures depend on."""
    import fbgemm_gpu
    import torchrec

    gpu = torch.cuda.get_device_name() if run.sizes.device == "cuda" else "none"
    run.say(
        "environment", torch=torch.__version__, torchrec=torchrec.__version__,
        fbgemm=fbgemm_gpu.__version__, cuda=torch.version.cuda, gpu=gpu,
    )  # fmt: skip


def converted(run: Run) -> None:
    """Convert a planned model with every kernel, and compare it with its own float rows."""
    items, bags = (2_000, 400) if run.sizes.device == "cpu" else (50_000, 6_000)
    trace = generate(items, bags, seed=1)
    table = EmbeddingBagConfig(
        name="t_item", num_embeddings=items, embedding_dim=DIM, feature_names=["item"]
    )
    model = nn.Sequential(EmbeddingBagCollection(tables=[table])).eval()
    lengths = torch.from_numpy(trace.offsets_B1).diff()
    batch = KeyedJaggedTensor(
        keys=["item"], values=torch.from_numpy(trace.ids_L).long(), lengths=lengths
    )
    hbm_bytes = items * DIM  # a quarter of the table: originals live in host memory
    memory = grace.MemoryModel.named("h200", hbm_bytes=hbm_bytes)
    plan = grace.plan(model, grace.profile([batch], model), memory)
    wanted = model(batch).values().detach()
    for host_memory in ("uvm", "uvm_caching"):
        for mapped in (True, False):
            sharding = Spread(
                device=run.sizes.device, host_memory=host_memory, uvm_host_mapped=mapped
            )
            served = grace.convert(
                model, plan, example=(batch,), row_dtype="int8", sharding=sharding
            )
            error = float((served(batch).values().cpu() - wanted).abs().max())
            where = sorted({spec[4].name for b in batches_of(served) for spec in b.embedding_specs})
            run.say(
                "converted", host_memory=host_memory, mapped=mapped, locations=where,
                max_error=error, ok=error < 0.05 * float(wanted.abs().max()),
                cache=[vars(stats) for stats in cache_stats(served)],
            )  # fmt: skip


def table_batch(
    run: Run, rows: Tensor, kind: str, location: str, **options: Any
) -> IntNBitTableBatchedEmbeddingBagsCodegen:
    """Make a table batch of one table and give it its rows."""
    on_cpu = run.sizes.device == "cpu"
    where = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation[location]
    batch = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("t", rows.shape[0], rows.shape[1], ROW_TYPES[kind], where)],
        device=run.sizes.device, output_dtype=SparseType.FP32, **options,
    )  # fmt: skip
    batch.initialize_weights()
    held = batch.split_embedding_weights(split_scale_shifts=False)[0][0]
    packed = pack_rows(rows, kind)
    held[:, : packed.shape[1]].copy_(packed)
    return batch


def split(table: Table, ids: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rewrite bags on the CPU; return (ids, offsets) of plain rows, and of stored ones."""
    num_items, bags = len(table.rows_ND), ids.shape[0]
    offsets = torch.arange(bags + 1) * ids.shape[1]
    _, rows, ends, _ = cpu.rewrite_counted(
        ids.cpu().long().flatten().numpy(), offsets.numpy(), None,
        ops.packed_codes(table.code_N.cpu()), num_items, 0,
    )  # fmt: skip
    rows, ends = torch.from_numpy(rows), torch.from_numpy(ends)
    bag_of = torch.repeat_interleave(torch.arange(bags), ends.diff())
    parts = []
    for chosen, first in ((rows < num_items, 0), (rows >= num_items, num_items)):
        lengths = torch.bincount(bag_of[chosen], minlength=bags)
        own = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        parts.append(((rows[chosen] - first).int(), own.int()))
    return parts[0], parts[1]


def times(run: Run) -> None:
    """Time every way to read one table that lies in host memory, in turn."""
    for kind in ROW_TYPES:
        table = make_table(run.sizes, DIM, torch.float32)
        times_of(run, table, kind)
        del table


def times_of(run: Run, table: Table, kind: str) -> None:
    """Check that all entrants answer alike, then time them."""
    device, stored = run.sizes.device, len(table.sums_RD)
    wide = "fp16"  # stored sums are held in the next wider type, as convert holds them
    share = stored * 2 * DIM / (len(table.rows_ND) * pack_rows(table.rows_ND[:1], kind).shape[1])
    make = functools.partial(table_batch, run)
    plain = {
        "uvm_mapped": make(table.rows_ND, kind, "MANAGED", uvm_host_mapped=True),
        "uvm_managed": make(table.rows_ND, kind, "MANAGED", uvm_host_mapped=False),
        "uvm_caching": make(
            table.rows_ND, kind, "MANAGED_CACHING", uvm_host_mapped=True,
            cache_load_factor=min(1.0, share), gather_uvm_cache_stats=device == "cuda",
        ),
    }  # fmt: skip
    sums = make(table.sums_RD, wide, "DEVICE")
    raw, ours = [], []
    for seed in range(run.sizes.input_sets):
        ids = make_bags(run.sizes, table, POOLING, seed)
        offsets = torch.arange(len(ids) + 1, device=device, dtype=torch.int32) * POOLING
        raw.append((ids.flatten(), offsets))
        ours.append([tuple(t.to(device) for t in part) for part in split(table, ids)])
    entrants: dict[str, Callable[[int], Tensor]] = {
        name: functools.partial(look_up, batch, raw) for name, batch in plain.items()
    }
    entrants["ours"] = functools.partial(look_up_parts, plain["uvm_mapped"], sums, ours)
    wanted = entrants["uvm_mapped"](0)
    errors = {name: float((one(0) - wanted).abs().max()) for name, one in entrants.items()}
    size = float(wanted.abs().max())
    us = median_us(run.sizes, entrants)
    run.say(
        "times", rows=kind, hbm_bytes=stored * 2 * DIM, cache_load_factor=min(1.0, share),
        ok=all(error <= 0.05 * size for error in errors.values()), errors=errors,
        us={name: float(f"{value:.4g}") for name, value in us.items()},
        ratio_to_uvm=us["uvm_mapped"] / us["ours"], ratio_to_caching=us["uvm_caching"] / us["ours"],
        cache=[vars(stats) for stats in cache_stats_of(plain["uvm_caching"])],
    )  # fmt: skip


def look_up(batch: nn.Module, inputs: list[tuple[Tensor, Tensor]], which: int) -> Tensor:
    """Look one of several inputs up."""
    found: Tensor = batch(*inputs[which])
    return found


def look_up_parts(plain: nn.Module, sums: nn.Module, inputs: list[Any], which: int) -> Tensor:
    """Look residual rows and stored sums up on two streams, and add them."""
    rows, stored = inputs[which]
    if not rows[0].is_cuda:
        return plain(*rows) + sums(*stored)
    here, beside = torch.cuda.current_stream(), side_stream()
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        from_sums = sums(*stored)
    from_rows = plain(*rows)
    here.wait_stream(beside)
    from_sums.record_stream(here)
    return from_rows + from_sums


@functools.cache
def side_stream() -> Any:
    """Return the second stream, made once."""
    return torch.cuda.Stream()


def cache_stats_of(batch: Any) -> list[Any]:
    """Return the cache's counts of one table batch that stands alone."""
    if not batch.gather_uvm_cache_stats:
        return []
    names = ("calls", "requested", "unique", "missed", "crowded_out")
    counts = dict(zip(names, batch.get_uvm_cache_stats().tolist(), strict=False))
    return [argparse.Namespace(**counts)]


STAGES: tuple[tuple[Callable[[Run], None], float], ...] = (  # least seconds it needs
    (environment, 0),
    (converted, 40),
    (times, 60),
)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run the stages that fit, say what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=300, help="seconds")
    parser.add_argument("-o", "--out", type=Path, help="results; default: gpu_check_fbgemm")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU")
    run = started(parser, parser.parse_args(arguments), "gpu_check_fbgemm")
    return run_stages(run, STAGES)


if __name__ == "__main__":
    sys.exit(main())
