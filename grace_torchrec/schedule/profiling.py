"""Profiling: run a traced model and time its operators, on the CPU or on a GPU.

Flow: GraphModule + example -> *OpStats*.  On a GPU each operator is a named range; kernels found
by torch.profiler, or in an export of Nsight Systems, belong to the range that launched them
(:mod:`grace_torchrec.schedule.launches`).
"""

import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from grace_sharding.calibration import load_now
from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.launches import RANGE_PREFIX, VIEW_PREFIX, from_chrome_trace
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats, Timed
from grace_torchrec.timing import Samples

CPU_LAUNCH_US = 3.0  # host time of a kernel launch, where only a CPU was measured


class TimedRun(fx.Interpreter):
    """Runs a graph node by node and keeps the time of each and the bytes of its output.

    Args:
        gm: The traced model.
        owner: Node name -> operator name; those operators become named ranges if ``ranges``.
        ranges: Mark each operator as a range for profilers.
    """

    def __init__(self, gm: fx.GraphModule, owner: dict[str, str], ranges: bool = False) -> None:
        super().__init__(gm)
        self.owner, self.ranges = owner, ranges
        self.seconds: dict[str, list[float]] = {}
        self.bytes_out: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run and time one node."""
        mark: AbstractContextManager[Any] = nullcontext()
        if self.ranges and n.name in self.owner:
            own = self.owner[n.name]
            prefix = RANGE_PREFIX if own == n.name else VIEW_PREFIX
            mark = torch.profiler.record_function(prefix + own)
        with mark:
            begin = time.perf_counter()
            value = super().run_node(n)
            self.seconds.setdefault(n.name, []).append(time.perf_counter() - begin)
        tensors = torch.utils._pytree.tree_leaves(value)
        self.bytes_out[n.name] = sum(t.nbytes for t in tensors if isinstance(t, Tensor))
        return value


def profile_cpu(
    gm: fx.GraphModule, graph: OpGraph, example: tuple[Any, ...], rounds: int = 25
) -> OpStats:
    """Time every operator on the CPU: the shortest of the rounds, after two that do not count.

    Args:
        gm: The traced model.
        graph: Its operators.
        example: Positional arguments of one batch.
        rounds: Timed rounds.
    """
    run, load, example = TimedRun(gm, {}), load_now(), cloned(example)
    with torch.inference_mode():
        for _ in range(rounds + 2):
            run.run(*example)
    stats = []
    for op in graph.ops:
        us = sum(min(run.seconds[node][2:]) for node in op.nodes) * 1e6
        out = run.bytes_out[op.nodes[0]]
        stats.append(OpStat(round(us, 3), CPU_LAUNCH_US, max(1, out // 4096), out))
    device = f"CPU, {torch.get_num_threads()} threads"
    return OpStats.of(graph, stats, "cpu", device, _timed(graph, run, rounds, load))


def _timed(graph: OpGraph, run: TimedRun, rounds: int, load: float | None) -> Timed:
    """Return the spread of whole rounds: operators are told by their shortest times alone."""
    nodes = [run.seconds[node][2:] for op in graph.ops for node in op.nodes]
    whole = Samples(np.array(nodes, np.float64).reshape(len(nodes), rounds).sum(axis=0) * 1e6)
    least, median, q20, q80 = (
        round(us, 3) for us in (float(whole.values_R.min()), whole.median, whole.q20, whole.q80)
    )
    cores = os.cpu_count() or 0
    return Timed(rounds, least, median, q20, q80, whole.is_unsteady, load, cores)


def profile_cuda(
    gm: fx.GraphModule, graph: OpGraph, example: tuple[Any, ...], rounds: int = 5
) -> OpStats:
    """Profile every operator's kernels with torch.profiler; the model must be on a GPU.

    Args:
        gm: The traced model.
        graph: Its operators.
        example: Positional arguments of one batch, on the GPU.
        rounds: Rounds to average.

    Raises:
        NotSupported: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise NotSupported("profile on CUDA: no GPU here; use profile_cpu or roofline")
    owner = {node: op.name for op in graph.ops for node in op.nodes}
    run, example = TimedRun(gm, owner, ranges=True), cloned(example)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.inference_mode():
        run.run(*example)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=kinds) as profile:
            for _ in range(rounds):
                run.run(*example)
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        sizes = [run.bytes_out[op.nodes[0]] for op in graph.ops]
        return from_chrome_trace(graph, path, torch.cuda.get_device_name(), sizes)
