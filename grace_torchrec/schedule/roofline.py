"""Roofline: an estimate of each operator's cost from its shapes, where nothing was measured.

Flow: traced model + example -> shapes -> *OpStats*.  Derived: time = a kernel's fixed part + the
slower of memory and arithmetic, slowed by the processors that its grid leaves idle; grids from
the tile sizes that libraries use for small batches.  An estimate: a profile takes its place.
"""

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, fx

from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.tracing import example_refused


@dataclass(frozen=True)
class Gpu:
    """What the estimate needs to know of a GPU.

    Attributes:
        name: Its name.
        processors: Streaming multiprocessors.
        gb_s: Memory bandwidth.
        tflop_s: Dense float32 arithmetic (with TF32).
        fixed_us: Shortest time of a kernel.
        launch_us: Host time of a launch.
    """

    name: str
    processors: int
    gb_s: float
    tflop_s: float
    fixed_us: float = 2.0
    launch_us: float = 3.0


A30 = Gpu("A30", 56, 933.0, 41.0)
H200 = Gpu("H200", 132, 4800.0, 247.0)
TILE_ROWS, TILE_COLUMNS = 64, 64  # of a matrix product
ELEMENTS_A_BLOCK = 1024  # of an elementwise kernel: 256 threads, 4 each
BAGS_A_BLOCK = 4  # of an embedding kernel: a warp a bag
GATHER_WAIT_US = 1.0  # dependent reads: offsets, ids, rows
WAIT_A_K_US = 0.8  # a tile's wait for each 64 of the inner dimension


def roofline(
    gm: fx.GraphModule, graph: OpGraph, example: tuple[Any, ...], gpu: Gpu = A30
) -> OpStats:
    """Estimate every operator of ``graph`` for ``gpu``; the model runs once where it is.

    Args:
        gm: The traced model.
        graph: Its operators.
        example: Positional arguments of one batch.
        gpu: What to estimate for.

    Raises:
        GraceError: the example is not a batch of this model.
    """
    shapes, example = _Shapes(gm), cloned(example)
    try:
        with torch.inference_mode():
            shapes.run(*example)
    except Exception as error:  # whatever the model's own code raises
        raise example_refused(graph.name, error) from error
    nodes = {node.name: node for node in gm.graph.nodes}
    stats = [_estimate(gm, nodes[op.nodes[0]], op.kind, shapes.found, gpu) for op in graph.ops]
    return OpStats.of(graph, stats, "roofline", gpu.name)


class _Shapes(fx.Interpreter):
    """Runs a graph and keeps the shape and bytes of every node's tensors."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.found: dict[fx.Node, list[tuple[tuple[int, ...], int]]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        value = super().run_node(n)
        tensors = [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, Tensor)]
        self.found[n] = [(tuple(t.shape), t.nbytes) for t in tensors]
        return value


def _estimate(
    gm: fx.GraphModule,
    node: fx.Node,
    kind: str,
    shapes: dict[fx.Node, list[tuple[tuple[int, ...], int]]],
    gpu: Gpu,
) -> OpStat:
    """Estimate one node."""
    inputs = [found for n in node.all_input_nodes for found in shapes[n]]
    outputs = shapes[node]
    written = sum(nbytes for _, nbytes in outputs)
    moved = written + sum(nbytes for _, nbytes in inputs)
    elements = sum(prod(shape) for shape, _ in outputs)
    flops, extra_us = float(elements), 0.0
    grid = ceil(elements / ELEMENTS_A_BLOCK)
    if kind == "gemm":
        inner = inputs[0][0][-1]
        rows, columns = _matrix(outputs[0][0])
        grid = rows * columns
        flops = 2.0 * elements * inner
        extra_us = WAIT_A_K_US * ceil(inner / 64)
        if node.op == "call_module":
            moved += sum(p.nbytes for p in gm.get_submodule(str(node.target)).parameters())
    elif kind == "embedding":
        bags = prod(outputs[0][0][:-1])
        ids = max((prod(shape) for shape, _ in inputs), default=bags)
        grid = ceil(bags / BAGS_A_BLOCK)
        moved = written + sum(nbytes for _, nbytes in inputs) + written // max(bags, 1) * ids
        flops = float(ids * outputs[0][0][-1])
        extra_us = GATHER_WAIT_US * ceil(ids / max(bags, 1))
    used = min(max(grid, 1), gpu.processors) / gpu.processors
    busy_us = max(moved / gpu.gb_s / 1e3, flops / gpu.tflop_s / 1e6) / used
    return OpStat(round(gpu.fixed_us + extra_us + busy_us, 3), gpu.launch_us, max(grid, 1), written)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the tiles down (batch times rows) and across a product of this shape."""
    batches = prod(shape[:-2]) if len(shape) > 2 else 1
    rows = shape[-2] if len(shape) > 1 else 1
    return batches * ceil(rows / TILE_ROWS), ceil(shape[-1] / TILE_COLUMNS)
