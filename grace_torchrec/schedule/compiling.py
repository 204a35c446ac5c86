"""Compiling: torch.compile with the streams of an annotated graph.

Flow: GraphModule + Schedule -> ``annotate`` -> torch.compile(backend=*stream_backend*) -> Inductor.
Inductor keeps ``node.meta["custom"]["stream"]`` but neither makes the streams nor, in a forward
graph, waits between them; both are written into the graph here, with the ops that Dynamo itself
uses for a user's streams.  For the CPU, Inductor (torch 2.13) enters streams that it declares on
GPUs only (``Scheduler.generate_stream_ctx_switching`` asks for a device, ``codegen_device_guard_enter``
for one that needs a guard), so streams go no further than this backend there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

ROOT = 0  # Dynamo's number of the caller's stream, and ours of stream 0


def stream_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile Dynamo's graph with Inductor; give as ``torch.compile(model, backend=stream_backend)``.

    Args:
        gm: What Dynamo captured of an annotated GraphModule of functions (as torch.export makes).
        example_inputs: Its inputs.
    """
    from torch._inductor.compile_fx import compile_fx

    tensors = [value for value in example_inputs if isinstance(value, Tensor)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        from torch._dynamo.variables.streams import new_event, new_stream

        synchronised(gm, new_stream, new_event)
    else:
        for node in gm.graph.nodes:
            node.meta.get("custom", {}).pop("stream", None)
    # Inductor's cache looks at operators only: without a tag it may answer with other streams' code
    tag = f"{torch.compiler.config.cache_key_tag} streams {[_stream(n) for n in gm.graph.nodes]}"
    with torch.compiler.config.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
        compiled: Any = compile_fx(gm, list(example_inputs))
    return compiled  # type: ignore[no-any-return]


def synchronised(
    gm: fx.GraphModule, new_stream: Callable[[], int], new_event: Callable[[], int]
) -> None:
    """Number the streams as the compiler does and write every record and wait between them.

    The other streams begin after what the caller's stream holds; results are there once it is done.

    Args:
        gm: A graph whose nodes may carry ``meta["custom"]["stream"]``; changed in place.
        new_stream: Makes a stream; returns its number.
        new_event: Makes an event; returns its number.
    """
    from torch._dynamo.variables import streams  # noqa: F401 - registers torch.ops.streams

    record, wait = torch.ops.streams.record_event.default, torch.ops.streams.wait_event.default
    calls = [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    stream_of = {node: _stream(node) for node in calls}
    number = {ROOT: ROOT} | {s: new_stream() for s in sorted(set(stream_of.values()) - {ROOT})}
    events: dict[fx.Node | None, int] = {}
    known: set[tuple[int, fx.Node | None]] = set()  # (stream, producer that it waited for)

    def await_before(user: fx.Node, stream: int, producer: fx.Node | None) -> None:
        """Let a stream wait for a producer, or for the caller, before a node."""
        if (stream, producer) in known:
            return
        known.add((stream, producer))
        if producer not in events:
            events[producer] = new_event()
            source = ROOT if producer is None else stream_of[producer]
            place = calls[0].prev if producer is None else producer
            with gm.graph.inserting_after(place):
                gm.graph.call_function(record, (events[producer], number[source]))
        with gm.graph.inserting_before(user):
            gm.graph.call_function(wait, (events[producer], number[stream]))

    for node in calls:
        if stream_of[node] != ROOT:
            await_before(node, stream_of[node], None)
    output = next(node for node in gm.graph.nodes if node.op == "output")
    for node in [*calls, output]:
        own = stream_of.get(node, ROOT)
        for need in node.all_input_nodes:
            if stream_of.get(need, own) != own:
                await_before(node, own, need)
    for node in calls:
        custom = node.meta.get("custom", {})
        if custom.pop("stream", ROOT) != ROOT:
            custom["stream"] = number[stream_of[node]]
    gm.recompile()


def _stream(node: fx.Node) -> int:
    """Return the stream that a node is annotated with; without one it is the caller's."""
    return int(node.meta.get("custom", {}).get("stream", ROOT))
