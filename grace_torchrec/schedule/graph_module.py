"""A lowered GraphModule: the model's nodes in the host's order, with calls that steer the streams.

Flow: traced model + Lowered -> *GraphModule* -> (read back) Lowered for the proof.
The calls go to the module ``streams`` inside, which passes them to its backend; without one the
model computes the same on the caller's stream.  Nodes carry their stream in ``node.meta``.
"""

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.backends import NullBackend, StreamBackend
from grace_torchrec.schedule.lower import (
    Await,
    Lowered,
    Mark,
    Release,
    Retire,
    Run,
    Step,
    Use,
)
from grace_torchrec.schedule.schedule import Schedule
from grace_torchrec.schedule.straight_code import StraightCode

STREAMS = "streams"  # name of the module inside that holds the backend
META_STREAM, META_OP = "grace_stream", "grace_op"


class Streams(nn.Module):
    """Holds the backend of a lowered model; copies and pickles of the model start without one."""

    def __init__(self, backend: StreamBackend | None = None) -> None:
        super().__init__()
        self.attach(backend or NullBackend())

    def attach(self, backend: StreamBackend) -> None:
        """Let ``backend`` carry out what the model tells its streams."""
        self.backend = backend
        # plain attributes: one look-up less in every call
        self.use, self.record, self.wait = backend.use, backend.record, backend.wait
        self.retire, self.begin, self.end = backend.retire, backend.begin, backend.end

    def __getstate__(self) -> dict[str, Any]:
        """Leave the backend out: streams belong to a process."""
        names = ("backend", "use", "record", "wait", "retire", "begin", "end")
        return {name: value for name, value in self.__dict__.items() if name not in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without a backend."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.attach(NullBackend())


def begin_query(streams: Streams) -> None:
    """A query starts."""
    streams.begin()


def use_stream(streams: Streams, stream: int) -> None:
    """Operators go to ``stream`` from here on."""
    streams.use(stream)


def record_event(streams: Streams, event: int) -> None:
    """Record an event on the current stream."""
    streams.record(event)


def wait_event(streams: Streams, event: int) -> None:
    """Let the current stream wait for an event."""
    streams.wait(event)


def retire_values(streams: Streams, *values: Any) -> None:
    """Hand values to the tensor pool."""
    streams.retire(*values)


def release_values(*values: Any) -> None:
    """Keep values until here: the host lets go of them after this call."""


STEERING: dict[Callable[..., Any], str] = {  # and the method of the backend each one asks
    use_stream: "use",
    record_event: "record",
    wait_event: "wait",
    retire_values: "retire",
}
for _call in (begin_query, *STEERING, release_values):
    fx.node.has_side_effect(_call)


def to_graph_module(gm: fx.GraphModule, lowered: Lowered) -> fx.GraphModule:
    """Return a new GraphModule that shares the modules of ``gm`` and follows the steps.

    Args:
        gm: The traced model.
        lowered: Steps of a schedule of its operators.
    """
    writer = _Writer(gm, lowered.schedule)
    for step in lowered.steps:
        writer.write(step)
    return writer.finished()


def read_steps(gm: fx.GraphModule, schedule: Schedule) -> Lowered:
    """Return the steps that a lowered GraphModule really takes, from its nodes.

    Args:
        gm: A lowered GraphModule.
        schedule: The schedule it was lowered from.
    """
    places = {op.nodes[0]: place for place, op in enumerate(schedule.graph.ops)}
    steps: list[Step] = []
    for node in gm.graph.nodes:
        if node.target is use_stream:
            steps.append(Use(node.args[1]))
        elif node.target is record_event:
            steps.append(Mark(node.args[1]))
        elif node.target is wait_event:
            steps.append(Await(node.args[1]))
        elif node.target in (release_values, retire_values):
            names = [a.meta[META_OP] for a in node.args if META_OP in getattr(a, "meta", {})]
            kind = Release if node.target is release_values else Retire
            steps.append(kind(tuple(places[name] for name in names)))
        elif node.meta.get(META_OP) in places and node.meta.get("grace_first"):
            steps.append(Run(places[node.meta[META_OP]]))
    return Lowered(schedule, tuple(steps))


def is_lowered(module: nn.Module) -> bool:
    """Return whether a module is a lowered GraphModule."""
    return isinstance(module, fx.GraphModule) and isinstance(
        getattr(module, STREAMS, None), Streams
    )


class _Writer:
    """Writes a new graph."""

    def __init__(self, gm: fx.GraphModule, schedule: Schedule) -> None:
        self.gm, self.schedule = gm, schedule
        self.nodes = {node.name: node for node in gm.graph.nodes}
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.current = 0
        in_ops = {name for op in schedule.graph.ops for name in op.nodes}
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                self._copy(node)
        self.streams = self.graph.get_attr(STREAMS)
        self.graph.call_function(begin_query, (self.streams,))
        for node in gm.graph.nodes:
            if node.op not in ("placeholder", "output") and node.name not in in_ops:
                self._copy(node)  # weights, shapes and views of inputs: no operator of ours

    def write(self, step: Step) -> None:
        """Write one step."""
        if isinstance(step, Use):
            self.current = step.stream
            self._call(use_stream, step.stream)
        elif isinstance(step, Mark):
            self._call(record_event, step.event)
        elif isinstance(step, Await):
            self._call(wait_event, step.event)
        elif isinstance(step, Run):
            op = self.schedule.graph.ops[step.op]
            for place, name in enumerate(op.nodes):
                copy = self._copy(self.nodes[name])
                copy.meta |= {META_STREAM: self.current, META_OP: op.nodes[0]}
                copy.meta["grace_first"] = place == 0
        else:
            kept = [self.copies[self._first(op)] for op in step.ops]
            if isinstance(step, Release):
                self.graph.call_function(release_values, tuple(kept))
            else:
                self.graph.call_function(retire_values, (self.streams, *kept))

    def finished(self) -> fx.GraphModule:
        """Write the output; return the module."""
        output = next(node for node in self.gm.graph.nodes if node.op == "output")
        self._copy(output)
        root = nn.Module()
        root.__dict__.update(
            {
                k: v
                for k, v in self.gm.__dict__.items()
                if k in ("_modules", "_parameters", "_buffers")
            }
        )
        root._modules = {**self.gm._modules, STREAMS: Streams()}
        self.graph.set_codegen(StraightCode(STREAMS, begin_query, STEERING, release_values))
        lowered = fx.GraphModule(root, self.graph, type(self.gm).__name__)
        for name, value in vars(self.gm).items():  # plain attributes that nodes may read
            if not name.startswith("_") and name not in lowered.__dict__:
                lowered.__dict__[name] = value
        lowered.train(self.gm.training)
        lowered.graph.lint()
        return refusing_pickle(lowered)

    def _first(self, op: int) -> fx.Node:
        """Return the computing node of an operator."""
        first: fx.Node = self.nodes[self.schedule.graph.ops[op].nodes[0]]
        return first

    def _copy(self, node: fx.Node) -> fx.Node:
        """Copy one node of the model."""
        copy: fx.Node = self.graph.node_copy(node, self.copies.__getitem__)
        self.copies[node] = copy
        return copy

    def _call(self, function: Any, number: int) -> None:
        """Write a call with a number."""
        self.graph.call_function(function, (self.streams, number))


def refusing_pickle(module: fx.GraphModule) -> fx.GraphModule:
    """Let a lowered GraphModule refuse to be pickled: a new trace would lose its calls."""

    def refuse(self: fx.GraphModule) -> Any:
        """Say what to do instead."""
        raise NotSupported(
            "a scheduled GraphModule cannot be pickled: save the model and schedule it again"
        )

    type(module).__reduce__ = refuse  # type: ignore[method-assign]
    return module


def attach(module: nn.Module, backend: StreamBackend) -> None:
    """Let a backend carry out the streams of a lowered model.

    Args:
        module: A lowered GraphModule.
        backend: What is to carry them out.
    """
    streams = module.get_submodule(STREAMS)
    assert isinstance(streams, Streams)
    streams.attach(backend)


def annotate(gm: fx.GraphModule, schedule: Schedule) -> int:
    """Write each operator's stream into ``node.meta["custom"]`` for torch.compile.

    Dynamo keeps it on calls of functions only: give it a graph without modules, as torch.export
    makes, and compile with ``compiling.stream_backend``, which writes the waits between streams.
    Returns how many nodes changed: none the second time.
    """
    nodes = {node.name: node for node in gm.graph.nodes}
    changed = 0
    for op, stream in zip(schedule.graph.ops, schedule.stream_n, strict=True):
        for name in op.nodes:
            custom = nodes[name].meta.setdefault("custom", {})
            if custom.get("stream") != stream:
                custom["stream"] = stream
                changed += 1
    return changed
