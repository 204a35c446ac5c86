"""Segment program: a lowered model as parts that any stream can be given, each launched whole.

Flow: lowered GraphModule + its steps -> *SegmentProgram*: segments as functions, and as a graph with
costs -> OnlineScheduler decides their streams -> :mod:`grace_torchrec.serve.segmented_model`
tells them.
Source: RecOS, IJCAI'25, section 3.4 (what is decided at launch).  Derived: the unit is a segment
(:mod:`segments`); its time is the sum of its operators', its grid their largest, and it is an
embedding where it holds one.
Each part is compiled once, and takes the model as an argument: a second model over the same graph
(the twin that takes a delta) runs by the same functions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.graph_module import (
    META_OP,
    STEERING,
    begin_query,
    is_lowered,
    release_values,
)
from grace_torchrec.schedule.lower import Lowered
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.segments import Runs, cut, fused, needs_of
from grace_torchrec.schedule.straight_code import DirectCalls
from grace_torchrec.schedule.stream_pass import Scheduled

Values = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Nodes of a graph as one function.

    Attributes:
        code: Takes the model, then the inputs; returns the outputs.
        inputs: Names of the values it is given.
        outputs: Names of the values it makes.
    """

    code: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, model: nn.Module, values: Values) -> None:
        """Add to ``values`` what the nodes compute from them."""
        found = self.code(model, *[values[name] for name in self.inputs])
        values.update(zip(self.outputs, found, strict=True))


@dataclass(frozen=True)
class SegmentProgram:
    """A model in parts.

    Attributes:
        lowered: The steps it was made from.
        runs: Operators of each segment.
        graph: The segments as operators.
        stats: Their costs.
        entry: Takes the model's arguments; shapes and views of them.
        segments: What streams are given.
        result: The model's output, from the values of segments.
    """

    lowered: Lowered
    runs: tuple[tuple[int, ...], ...]
    graph: OpGraph
    stats: OpStats
    entry: Part
    segments: tuple[Part, ...]
    result: Part

    def begin(self, model: nn.Module, batch: Sequence[Any]) -> Values:
        """Return the values that are there before a query's first segment.

        Args:
            model: The lowered module, or a twin of it.
            batch: The model's positional arguments.
        """
        return dict(zip(self.entry.outputs, self.entry.code(model, *batch), strict=True))

    def end(self, model: nn.Module, values: Values) -> Any:
        """Return the model's output once all segments have run."""
        return self.result.code(model, *[values[name] for name in self.result.inputs])


def segment_program(module: nn.Module, least_us: float = 0.0) -> SegmentProgram:
    """Cut a scheduled module into segments.

    A model that is cut into one segment alone is a program too: its queries lie on several streams,
    each whole on one.

    Args:
        module: What ``schedule_`` or ``convert`` made.
        least_us: Segments shorter than this are joined with a neighbour.

    Raises:
        NotSupported: its operators are not scheduled.
    """
    scheduled = check_scheduled(module)
    assert isinstance(module, fx.GraphModule)
    assert scheduled.lowered is not None
    assert scheduled.stats is not None
    return program_of(module, scheduled.lowered, scheduled.stats, least_us)


def check_scheduled(module: nn.Module) -> Scheduled:
    """Return how a module was scheduled.

    Raises:
        NotSupported: its operators are not scheduled.
    """
    scheduled = vars(module).get("meta", {}).get("grace_scheduled")
    if not isinstance(scheduled, Scheduled) or not is_lowered(module):
        raise NotSupported(
            f"segments: the operators of {type(module).__name__} are not scheduled over streams; "
            "give what schedule_ or convert(streams=2 or more) made"
        )
    return scheduled


def program_of(
    gm: fx.GraphModule, lowered: Lowered, stats: OpStats, least_us: float = 0.0
) -> SegmentProgram:
    """Cut a lowered GraphModule into segments.

    Args:
        gm: A lowered GraphModule.
        lowered: Its steps.
        stats: Costs of its operators.
        least_us: Segments shorter than this are joined with a neighbour.
    """
    runs = cut(lowered)
    if least_us > 0:
        runs = fused(runs, lowered.schedule, stats.times_us, least_us)
    ops = lowered.schedule.graph.ops
    by_op: dict[str, list[fx.Node]] = {op.nodes[0]: [] for op in ops}
    before: list[fx.Node] = []  # the arguments, their views and shapes: of no operator
    for node in gm.graph.nodes:
        if META_OP in node.meta:
            by_op[node.meta[META_OP]].append(node)
        elif not (node.op in ("get_attr", "output") or _is_steering(node)):
            before.append(node)
    groups = [[node for op in run for node in by_op[ops[op].nodes[0]]] for run in runs]
    known = tuple(
        replace(op, kind="embedding") if any(_looks_up(gm, n) for n in by_op[op.nodes[0]]) else op
        for op in ops
    )
    graph, costs = segment_graph(OpGraph(lowered.schedule.graph.name, known), runs, stats)
    output = next(node for node in gm.graph.nodes if node.op == "output")
    return SegmentProgram(
        lowered, tuple(runs), graph, costs,
        _part(gm, before), tuple(_part(gm, nodes) for nodes in groups), _result(gm, output),
    )  # fmt: skip


def segment_graph(source: OpGraph, runs: Runs, stats: OpStats) -> tuple[OpGraph, OpStats]:
    """Return segments as operators of a graph of their own, with their costs.

    Args:
        source: Operators.
        runs: Operators of each segment, each after those it needs.
        stats: Costs of the operators.
    """
    ops, costs = [], []
    for place, (run, needs) in enumerate(zip(runs, needs_of(runs, source), strict=True)):
        inside, cost = [source.ops[op] for op in run], [stats.stats[op] for op in run]
        kinds = {op.kind for op in inside}
        kind = "embedding" if "embedding" in kinds else kinds.pop() if len(kinds) == 1 else "other"
        reads = tuple(dict.fromkeys(name for op in inside for name in op.reads))
        writes = tuple(dict.fromkeys(name for op in inside for name in op.writes))
        ops.append(Op(f"segment{place}", kind, tuple(needs), reads=reads, writes=writes))
        costs.append(
            OpStat(
                sum(stat.time_us for stat in cost),
                sum(stat.launch_us for stat in cost),
                max(stat.grid for stat in cost),
                sum(stat.bytes_out for stat in cost),
            )
        )
    graph = OpGraph(source.name, tuple(ops))
    return graph, OpStats.of(graph, costs, stats.source, stats.device)


def _looks_up(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Tell a module that says it looks rows up, whatever its class is called."""
    return node.op == "call_module" and bool(
        getattr(gm.get_submodule(str(node.target)), "looks_up_rows", False)
    )


def _is_steering(node: fx.Node) -> bool:
    """Tell nodes that say something to streams."""
    return node.target in STEERING or node.target in (begin_query, release_values)


def _part(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> Part:
    """Compile nodes into a function of what they take from others."""
    inside = set(nodes)
    given = dict.fromkeys(
        need for node in nodes for need in node.all_input_nodes if need not in inside
    )
    inputs = [node for node in given if node.op != "get_attr"]
    outputs = [
        node for node in nodes
        if any(user not in inside and not _is_steering(user) for user in node.users)
    ]  # fmt: skip
    graph, copies = fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in (*(node for node in given if node.op == "get_attr"), *nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return Part(_compiled(gm, graph), _names(inputs), _names(outputs))


def _result(gm: fx.GraphModule, output: fx.Node) -> Part:
    """Compile the model's output, which may be nested, into a function of the values in it."""
    graph, copies = fx.Graph(), {}
    inputs = [node for node in output.all_input_nodes if node.op != "get_attr"]
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in output.all_input_nodes:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
    graph.node_copy(output, copies.__getitem__)
    return Part(_compiled(gm, graph), _names(inputs), ())


def _compiled(gm: fx.GraphModule, graph: fx.Graph) -> Callable[..., Any]:
    """Return the function that a graph becomes; its first argument is the model."""
    graph.set_codegen(DirectCalls())
    code: Callable[..., Any] = type(fx.GraphModule(gm, graph, "Segment")).forward
    return code


def _names(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """Return the names of nodes."""
    return tuple(node.name for node in nodes)
