"""What ``bench lookup`` says beside the times of entrants: compiling, and rewriting hidden behind work.

Flow: the lookup case -> *jit_seconds*, *hidden* -> its result.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.calibration.grouped_bags import GroupedBags
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.rewrite_ahead import rewrite

# Prints the seconds of a first lookup; numba and torch are loaded before the clock starts.
FIRST_LOOKUP = """
import time
import numba, torch, numpy as np
numba.njit(lambda x: x + 1)(1)
from grace_kernels.cpu import FeatureRows, TableRows, look_up_features
rows = np.zeros((64, {dim}), np.float32)
codes = np.where(np.arange(64) < 8, np.arange(64), -1).astype(np.int32)
start = time.perf_counter()
table = TableRows(rows, rows[:0], np.zeros((247, {dim}), np.float32), codes, np.zeros(0, np.int32), 0)
out = np.empty((1, {dim}), np.float32)
look_up_features(FeatureRows([table], [0], [False]), np.arange(64), np.array([0, 64]), None, 1, out,
                 policy=0, num_threads=1)
print(time.perf_counter() - start)
"""


def jit_seconds(dim: int) -> dict[str, float]:
    """Return the seconds of a first lookup, with an empty disk cache and with a filled one.

    Raises:
        GraceError: a first lookup failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        return {state: _first_lookup(dim, folder) for state in ("cold", "cached")}


def _first_lookup(dim: int, cache: str) -> float:
    """Return the seconds of a first lookup in a new process."""
    root = Path(__file__).resolve().parents[1]
    paths = [str(root), str(root / "triton_kernels"), str(root / "sharding")]
    env = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_LOOKUP.format(dim=dim)],
        capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    if done.returncode:
        raise GraceError(f"lookup: a first lookup failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.strip().splitlines()[-1])


def hidden(
    bags: GroupedBags, module: GraceEmbeddingBagCollection, rounds: int
) -> dict[str, float | None]:
    """Measure which part of rewriting the prefetching iterator hides behind lookups.

    Args:
        bags: Batches.
        module: Planned ``ahead``.
        rounds: Rounds; the median counts.

    Returns:
        ``hidden_fraction``: 1 - (time with the iterator - lookups alone) / rewriting alone;
        ``idle_fraction``: share of one more core that was idle while lookups ran alone. None where
        nothing is rewritten.
    """
    if not bags.sums.num_sums:
        return {"hidden_fraction": None, "idle_fraction": None}
    model = torch.nn.Sequential(module)
    kjts = [
        KeyedJaggedTensor(keys=["f"], values=ids, lengths=offsets.diff(), offsets=offsets)
        for ids, offsets in bags.batches
    ]
    ready = list(rewrite(kjts, model, prefetch=0))
    shares, idles = [], []
    for turn in range(rounds + 1):
        rewriting = _seconds(lambda: list(rewrite(kjts, model, prefetch=0)))
        idle_before = _idle_seconds()
        alone = _seconds(lambda: [module(batch) for batch in ready])
        idle = (_idle_seconds() - idle_before) / alone
        together = _seconds(lambda: [module(batch) for batch in rewrite(kjts, model, prefetch=1)])
        if turn:
            shares.append(1 - (together - alone) / rewriting)
            idles.append(min(1.0, idle))
    middle = len(shares) // 2
    return {"hidden_fraction": sorted(shares)[middle], "idle_fraction": sorted(idles)[middle]}


def _idle_seconds() -> float:
    """Return the seconds that all cores together were idle since the start (Linux)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return int(fields[4]) / os.sysconf("SC_CLK_TCK")


def _seconds(run: Any) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
