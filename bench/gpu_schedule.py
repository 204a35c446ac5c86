"""Stages of gpu_check.py about schedules: does a GPU do what the simulator says, and what is gained.

Flow: random graphs of kernels that only spin -> lowered -> replayed from a CUDA graph, beside the
predicted time; then the four models: eager, lowered on one stream, ours, ours with the dense part
in a CUDA graph.  Without a GPU the same graphs run under the recording backend: every line but
the timing is executed.  Needs numba beside torch and triton.
"""

import functools
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, fx, nn

from bench.gpu_run import Run, median_us
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.backends import CudaBackend, RecordingBackend
from grace_torchrec.schedule.capture import capture_dense_
from grace_torchrec.schedule.graph_module import attach, read_steps, to_graph_module
from grace_torchrec.schedule.in_flight import prove
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.replay import replay_us
from grace_torchrec.schedule.roofline import H200, roofline
from grace_torchrec.schedule.schedule import Machine, single_stream
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.tracing import op_graph, trace

GRAPHS, STREAMS, LEAST_OPS, MOST_OPS = 20, (1, 2, 4), 8, 24
ROUNDS_OF_SPIN, LEAST_US, MOST_US = 2000, 20.0, 80.0
SHARES = (0.1, 0.25, 0.5, 1.0)  # blocks of a spin kernel, in whole GPUs
MOST_ERROR, LEAST_ORDER = 0.10, 0.8


@triton.jit
def spin_kernel(out_ptr, rounds, SIZE: tl.constexpr):
    """Every block multiplies ``rounds`` times and stores one number."""
    value = tl.program_id(0).to(tl.float32)
    for _ in range(rounds):
        value = value * 0.999 + 0.5
    tl.store(out_ptr + tl.program_id(0), value)


def spin(needs: list[Tensor], rounds: int, grid: int, like: Tensor) -> Tensor:
    """Launch a spin kernel after the tensors it needs; return what it stored."""
    out = torch.empty(grid, device=like.device)
    spin_kernel[(grid,)](out, rounds, SIZE=1)
    return out


def spin_graphs(run: Run) -> None:
    """Compare measured and predicted times of random graphs on 1, 2 and 4 streams."""
    on_gpu = run.sizes.device == "cuda"
    processors = H200.processors
    rounds_a_us = 10.0
    if on_gpu:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        rounds_a_us = ROUNDS_OF_SPIN / _spin_us(run)
    rng = random.Random(0)
    errors, orders = [], []
    for number in range(GRAPHS if on_gpu else 2):
        graph, stats, rounds = _random_graph(rng, processors, rounds_a_us if on_gpu else 0.05)
        measured, predicted = [], []
        for streams in STREAMS:
            found = _one_graph(run, graph, stats, rounds, streams, processors)
            if found is None:
                continue
            measured.append(found[0])
            predicted.append(found[1])
            errors.append(abs(found[0] / found[1] - 1))
        if measured:
            orders.append(_kendall(measured, predicted))
            run.say("spin_graph", number=number, measured_us=measured, predicted_us=predicted)
    if on_gpu:
        error, order = statistics.mean(errors), statistics.mean(orders)
        good = error <= MOST_ERROR and order >= LEAST_ORDER
        run.say("spin_graphs", ok=good, mean_error=error, order=order, graphs=GRAPHS)
    else:
        run.say("left_out", what="spin_graphs: times need a GPU; lowered and recorded only")


def _one_graph(
    run: Run, graph: OpGraph, stats: OpStats, rounds: list[int], streams: int, processors: int
) -> tuple[float, float] | None:
    """Lower one graph, check it, and on a GPU return measured and predicted microseconds."""
    plain = _spin_module(graph, rounds, stats.grids)
    machine = Machine(streams)
    schedule = make_schedule(graph, stats, machine)
    if streams == 1:
        schedule = single_stream(graph, stats, machine, "for comparison")
    module = to_graph_module(plain, lower(schedule))
    races = len(prove(read_steps(module, schedule)).races)
    x = torch.zeros(1, device=run.sizes.device)
    if run.sizes.device == "cpu":
        backend = RecordingBackend()
        attach(module, backend)
        equal = all(torch.equal(a, b) for a, b in zip(module(x), plain(x), strict=True))
        calls = len(backend.log)
        run.say("spin_recorded", ok=equal and not races, streams=streams, calls=calls)
        return None
    attach(module, CudaBackend(schedule.num_streams))
    module(x)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        module(x)
    us = median_us(run.sizes, {"replay": lambda which: recorded.replay()})["replay"]
    return us, replay_us(schedule, stats.grids, processors)


def models(run: Run) -> None:
    """Time the four models: eager, ours, ours with a CUDA graph; check that results are equal."""
    for name in MODELS:
        example = bundled(name, batch=64 if run.sizes.device == "cuda" else 2)
        model = example.model.to(run.sizes.device)
        batch = _moved(example.batches[0], run.sizes.device)
        with torch.inference_mode():
            _one_model(run, name, model, batch)


def _one_model(run: Run, name: str, model: nn.Module, batch: tuple[Any, ...]) -> None:
    """Time one model."""
    gm = trace(model)
    graph = op_graph(gm, name)
    if run.sizes.device == "cpu":
        backend = RecordingBackend()
        found = schedule_(model, batch, 4, stats=roofline(gm, graph, batch, H200), backend=backend)
        equal = torch.equal(found.module(*batch), model(*batch))
        run.say("model_recorded", ok=equal, model=name, calls=len(backend.log))
        return
    wanted = model(*batch)
    ours = schedule_(model, batch, 4)
    entrants: dict[str, Callable[[int], Any]] = {
        "eager": lambda which: model(*batch),
        "single_stream": lambda which: gm(*batch),
        "ours": lambda which: ours.module(*batch),
    }
    equal = torch.equal(ours.module(*batch), wanted)
    graphed = capture_dense_(model, batch)
    entrants["ours_graph"] = functools.partial(_call, graphed, batch)
    equal = equal and torch.equal(graphed(*batch), wanted)
    us = median_us(run.sizes, entrants)
    said = {f"{key}_us": value for key, value in us.items()}
    predicted = ours.schedule.makespan_us if ours.schedule is not None else None
    run.say("model", ok=equal, model=name, predicted_us=predicted, reason=ours.reason, **said)


def _call(module: nn.Module, batch: tuple[Any, ...], which: int) -> Any:
    """Call a module."""
    return module(*batch)


def _spin_us(run: Run) -> float:
    """Return the time of a spin kernel alone."""
    like = torch.zeros(1, device="cuda")
    entrants = {"spin": lambda which: [spin([], ROUNDS_OF_SPIN, 1, like) for _ in range(8)]}
    return median_us(run.sizes, entrants)["spin"] / 8


def _random_graph(
    rng: random.Random, processors: int, rounds_a_us: float
) -> tuple[OpGraph, OpStats, list[int]]:
    """Return a random graph with its costs, and the rounds that each operator spins."""
    ops, stats, rounds = [], [], []
    for place in range(rng.randint(LEAST_OPS, MOST_OPS)):
        near = range(max(0, place - 5), place)
        few = rng.choice((0, 1, 1, 2)) if place > 2 else 0
        needs = tuple(sorted(rng.sample(near, min(few, len(near)))))
        ops.append(Op(f"spin_{place}", "other", needs, nodes=(f"spin_{place}",)))
        us = rng.uniform(LEAST_US, MOST_US)
        rounds.append(max(1, int(us * rounds_a_us)))
        stats.append(OpStat(us, grid=max(1, int(rng.choice(SHARES) * processors))))
    graph = OpGraph("spin", tuple(ops))
    return graph, OpStats.of(graph, stats, "json", "spin kernels"), rounds


def _spin_module(graph: OpGraph, rounds: list[int], grids: list[int]) -> fx.GraphModule:
    """Return a GraphModule whose nodes are the operators of a graph."""
    written, nodes = fx.Graph(), []
    x = written.placeholder("x")
    for place, op in enumerate(graph.ops):
        needs = [nodes[need] for need in op.needs]
        node = written.call_function(spin, (needs, rounds[place], grids[place], x))
        node.name = op.name
        nodes.append(node)
    used = {need for op in graph.ops for need in op.needs}
    written.output(tuple(node for place, node in enumerate(nodes) if place not in used))
    return fx.GraphModule(nn.Module(), written).eval()


def _kendall(a: list[float], b: list[float]) -> float:
    """Return the share of pairs in the same order, minus that of pairs in the other."""
    pairs = [(i, j) for i in range(len(a)) for j in range(i)]
    same = sum(1 if (a[i] - a[j]) * (b[i] - b[j]) > 0 else -1 for i, j in pairs)
    return same / len(pairs) if pairs else 1.0


def _moved(batch: Any, device: str) -> Any:
    """Return a batch on a device."""
    return torch.utils._pytree.tree_map_only(Tensor, lambda t: t.to(device), batch)
