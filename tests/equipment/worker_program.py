"""Worker program: a lowered GraphModule that CPU streams run as a GPU would.

Flow: lowered GraphModule + inputs -> *WorkerProgram* on DelayedStreams -> results, bit for bit those of
the model.  Memory is treated as CUDA's allocator treats it: where the host lets go of a value, the
stream that owns it writes over it at once (NaN), so a wait that is missing is seen.
"""

from collections.abc import Callable
from typing import Any

import torch
from delayed_streams import PATIENCE_S, DelayedStreams, Query
from torch import Tensor, fx

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.graph_module import (
    META_OP,
    begin_query,
    record_event,
    release_values,
    retire_values,
    use_stream,
    wait_event,
)


class WorkerProgram:
    """A lowered GraphModule, ready to be run on CPU streams any number of times.

    Args:
        gm: A lowered GraphModule.
        leave_out: Number of the wait to leave out, to see a run fail; -1 leaves none out.
    """

    def __init__(self, gm: fx.GraphModule, leave_out: int = -1) -> None:
        self.gm = gm
        self.nodes = list(gm.graph.nodes)
        waits = [node for node in self.nodes if node.target is wait_event]
        self.left_out = waits[leave_out] if leave_out >= 0 else None
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.output = self.nodes[-1]
        self.dies_after = _last_uses(self.nodes)
        self.modules = dict(gm.named_modules())

    def start(self, streams: DelayedStreams, *inputs: Any) -> Callable[[], Any]:
        """Tell the streams one query; return a function that waits for its result.

        Args:
            streams: As many as the schedule has, or more.
            *inputs: Positional arguments of the model.
        """
        query = Query(streams)
        values: dict[fx.Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        owner: dict[fx.Node, int] = {}
        calls: dict[Any, Callable[[int], None]] = {
            use_stream: query.use,
            record_event: query.record,
            wait_event: query.wait,
        }
        for node in self.nodes:
            if node.op in ("placeholder", "output") or node is self.left_out:
                continue
            if node.target in calls:
                calls[node.target](node.args[1])
            elif node.target not in (begin_query, release_values, retire_values):
                owner[node] = query.current
                self._tell(query, node, values)
            for dead in self.dies_after.get(node, ()):
                streams.put(owner[dead], _overwriting(values, dead))
        query.use(0)
        result: list[Any] = []
        query.launch(lambda: result.append(_filled(self.output.args[0], values)))
        query.end()

        def wait() -> Any:
            """Wait for the result."""
            if not query.finished.wait(PATIENCE_S):
                raise GraceError(f"a query did not finish in {PATIENCE_S:.0f} s")
            if query.failed:
                raise query.failed[0]
            return result[0]

        return wait

    def run(self, streams: DelayedStreams, *inputs: Any) -> Any:
        """Run one query and return its result."""
        return self.start(streams, *inputs)()

    def _tell(self, query: Query, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        """Launch one node; nodes of no operator run at once, as they do on the host."""

        def compute() -> None:
            """Compute the node from the values that are there now."""
            args, kwargs = _filled(node.args, values), _filled(node.kwargs, values)
            if node.op == "call_module":
                values[node] = self.modules[str(node.target)](*args, **kwargs)
            elif node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            elif node.op == "get_attr":
                values[node] = _attribute(self.gm, str(node.target))
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]

        if META_OP in node.meta:
            query.launch(compute)
        else:
            compute()


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Return, for each node, the operators whose memory the host lets go of after it."""
    root: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, fx.Node] = {}
    kept: set[fx.Node] = set()
    for node in nodes:
        own = node.meta.get(META_OP)
        views = [a for a in node.all_input_nodes if own and root[a].meta.get(META_OP) == own]
        root[node] = root[views[0]] if views else node
        for used in node.all_input_nodes:
            last[root[used]] = node
            if node.op == "output" or node.target is retire_values:
                kept.add(root[used])
    dies: dict[fx.Node, list[fx.Node]] = {}
    for base, after in last.items():
        if META_OP in base.meta and base not in kept:
            dies.setdefault(after, []).append(base)
    return dies


def _overwriting(values: dict[fx.Node, Any], node: fx.Node) -> Callable[[], None]:
    """Return a task that writes over the memory of a value, as its next owner would."""

    def write() -> None:
        """Fill the tensors with what no model computes."""
        for tensor in torch.utils._pytree.tree_leaves(values.get(node)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.fill_(float("nan"))

    return write


def _filled(arguments: Any, values: dict[fx.Node, Any]) -> Any:
    """Return arguments with nodes replaced by their values."""
    return fx.node.map_arg(arguments, values.__getitem__)


def _attribute(module: Any, path: str) -> Any:
    """Return an attribute by its dotted path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module
