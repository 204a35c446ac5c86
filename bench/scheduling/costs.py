"""The committed cost files of the four models, and the command that makes them anew.

    python -m bench.scheduling.costs [cpu|a30]

Flow: bundled models -> *bench/data/costs/NAME.json* (every operator measured on a CPU, batch 512)
and *NAME_a30.json* (estimated for the paper's GPU, batch 16) -> the cases.
"""

import sys
from pathlib import Path

import torch

from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.op_stats import CostFile
from grace_torchrec.schedule.profiling import profile_cpu
from grace_torchrec.schedule.roofline import A30, roofline
from grace_torchrec.schedule.tracing import op_graph, trace

FOLDER = Path(__file__).resolve().parents[1] / "data" / "costs"
CPU_BATCH, GPU_BATCH, ROUNDS = 512, 16, 40


def load_costs(name: str, device: str = "") -> CostFile:
    """Return the committed costs of a model.

    Args:
        name: ``dlrm``, ``wide_deep``, ``din`` or ``bst``.
        device: Empty for the CPU's, or ``a30``.
    """
    return CostFile.load(FOLDER / (f"{name}_{device}.json" if device else f"{name}.json"))


def make_costs(name: str, device: str) -> CostFile:
    """Measure on this CPU, or estimate for the A30, one model's operators."""
    batch = GPU_BATCH if device else CPU_BATCH
    example = bundled(name, batch=batch)
    gm = trace(example.model)
    graph = op_graph(gm, name)
    if device:
        stats = roofline(gm, graph, example.batches[0], A30)
        return CostFile(graph, stats, f"estimated from shapes, batch {batch}")
    torch.set_num_threads(1)
    stats = profile_cpu(gm, graph, example.batches[0], ROUNDS)
    return CostFile(graph, stats, f"shortest of {ROUNDS} rounds, batch {batch}, float32")


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for device in sys.argv[1:] or ("cpu", "a30"):
        suffix = "" if device == "cpu" else f"_{device}"
        for name in MODELS:
            make_costs(name, suffix[1:]).save(FOLDER / f"{name}{suffix}.json")
            print(FOLDER / f"{name}{suffix}.json")


if __name__ == "__main__":
    main()
