"""Capture: the dense part of a model as a CUDA graph, its embeddings outside.

Flow: traced model -> *split* into what embeddings need and the rest -> the rest is scheduled,
captured once and replayed.  Graphs that hold cache look-ups would line up behind their locks and
bake in which rows are where; embeddings therefore stay calls of their own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.schedule.copied import cloned, copied
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import op_graph, trace

DENSE = "submod_1"
leaves = torch.utils._pytree.tree_leaves


def split_dense(model: nn.Module, example: tuple[Any, ...]) -> fx.GraphModule:
    """Return a GraphModule of two parts: ``submod_0`` with every embedding, ``submod_1`` the rest.

    What an embedding needs is in the first part too; the second part takes tensors only.

    Args:
        model: In eval mode.
        example: Positional arguments of one batch.

    Raises:
        NotSupported: it cannot be traced, has no embeddings, or nothing but them.
    """
    gm = trace(model)
    graph = op_graph(gm, touched=touched(gm, cloned(example)))
    first = _sparse_nodes(gm, graph)
    rest = [node for op in graph.ops for node in op.nodes if node not in first]
    if not rest or all(op.kind != "embedding" for op in graph.ops):
        raise NotSupported(
            f"{type(model).__name__}: {'nothing but' if not rest else 'no'} embeddings; "
            "schedule_ it whole"
        )
    split: fx.GraphModule = split_module(gm, model, lambda node: 0 if node.name in first else 1)
    split.eval()
    return split


def capture_dense_(model: nn.Module, example: tuple[Any, ...], streams: int = 4) -> fx.GraphModule:
    """Return the model with its dense part scheduled over streams and captured as a CUDA graph.

    Batches must have the example's shapes: others are refused.

    Args:
        model: In eval mode, on a GPU.
        example: Positional arguments of one batch, on the GPU.
        streams: Streams at most.

    Raises:
        NotSupported: there is no GPU, the model cannot be split, or its dense part writes its inputs.
    """
    if not torch.cuda.is_available():
        raise NotSupported("capture: no GPU here; use schedule_")
    split = split_dense(model, example)
    inputs = dense_inputs(split, cloned(example))
    refuse_written_inputs(split.get_submodule(DENSE), inputs)
    scheduled = schedule_(split.get_submodule(DENSE), inputs, streams)
    split.add_submodule(DENSE, GraphedPart(scheduled.module, inputs))
    return split


def dense_inputs(split: fx.GraphModule, example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what the dense part is called with for one batch."""
    seen: list[tuple[Any, ...]] = []
    dense = split.get_submodule(DENSE)
    hook = dense.register_forward_pre_hook(lambda module, args: seen.append(args))
    try:
        with torch.inference_mode():
            split(*example)
    finally:
        hook.remove()
    return seen[0]


def refuse_written_inputs(dense: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse a part that writes its inputs in place: a CUDA graph would write its own copies.

    Args:
        dense: A traced part.
        inputs: What it is called with; they are not changed.

    Raises:
        NotSupported: it does.
    """
    gm = trace(dense)
    seen = touched(gm, cloned(inputs))
    given = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    theirs = frozenset().union(*(seen[name].shows for name in given))
    writers = [name for name, now in seen.items() if now.writes & theirs]
    if writers:
        raise NotSupported(
            f"capture: {writers[0]!r} writes an input in place, which a CUDA graph would do to its "
            "own copy; use schedule_"
        )


class GraphedPart(nn.Module):
    """A module captured as a CUDA graph; its inputs are copied in, its output copied out.

    Args:
        module: What is captured.
        inputs: Of the shapes that will come.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.module = module
        self.inputs = copied(inputs, torch.clone)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode():
            with torch.cuda.stream(side):
                for _ in range(3):  # warm up: lazily made handles must not be captured
                    module(*self.inputs)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = module(*self.inputs)

    def forward(self, *inputs: Any) -> Any:
        """Copy the inputs in, replay, copy the output out.

        Raises:
            GraceError: the inputs are not of the shapes and types that were captured.
        """
        copy_in(self.inputs, inputs)
        self.graph.replay()
        return torch.utils._pytree.tree_map_only(Tensor, torch.clone, self.output)


def copy_in(captured: Sequence[Any], given: Sequence[Any]) -> None:
    """Copy a batch into the tensors that a CUDA graph reads.

    Args:
        captured: Inputs of the graph; what is no tensor is part of it and stays.
        given: The batch.

    Raises:
        GraceError: it is none of that graph; nothing was copied.
    """
    if len(given) != len(captured):
        raise GraceError(
            f"captured dense part: got {len(given)} inputs, it was captured with {len(captured)}; "
            "capture it again with this batch"
        )
    for number, (own, value) in enumerate(zip(captured, given, strict=True)):
        if _form(own) != _form(value):  # copy_ would repeat one row for all
            raise GraceError(
                f"captured dense part: input {number} is {_told(value)}, it was captured for "
                f"{_told(own)}; pad the batch to the example's shapes or capture it again"
            )
    for own, value in zip(leaves(captured), leaves(given), strict=True):
        if isinstance(own, Tensor):
            own.copy_(value)


def _form(value: Any) -> tuple[list[Any], Any]:
    """Return what a captured input must keep: containers, keys, and each part in them.

    Of a tensor, shape and type; of anything else, itself.
    """
    parts, containers = torch.utils._pytree.tree_flatten(value)
    return [
        (tuple(part.shape), str(part.dtype)) if isinstance(part, Tensor) else part for part in parts
    ], containers


def _told(value: Any) -> str:
    """Return the form of an input for a message."""
    parts, containers = _form(value)
    if containers.is_leaf():
        return str(parts[0])
    keys = f" of {containers.context}" if containers.context else ""
    return f"{type(value).__name__}{keys}: {', '.join(map(str, parts))}"


def _sparse_nodes(gm: fx.GraphModule, graph: OpGraph) -> set[str]:
    """Return the nodes of embeddings, of all they need, and of no operator."""
    before = graph.ancestors()
    chosen = 0
    for place, op in enumerate(graph.ops):
        if op.kind == "embedding":
            chosen |= before[place] | 1 << place
    in_ops = {node for op in graph.ops for node in op.nodes}
    nodes = {node.name for node in gm.graph.nodes if node.name not in in_ops}
    for place, op in enumerate(graph.ops):
        if chosen >> place & 1:
            nodes.update(op.nodes)
    return nodes
