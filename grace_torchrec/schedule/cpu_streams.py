"""CPU streams: worker threads that behave as CUDA streams do, to test what a GPU would run.

Flow: lowered GraphModule + inputs -> *run_on* -> results, bit for bit those of the model.
A stream is a thread with a queue in order; events are waited for inside the queue.  Memory is
treated as CUDA's allocator treats it: where the host lets go of a value, the stream that owns it
writes over it at once (NaN), so a wait that is missing is seen.  Delays may be added at random.
"""

import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
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

Task = Callable[[], None] | None
PATIENCE_S = 60.0


class CpuStreams:
    """Worker threads, one a stream; close it, or use it in a ``with`` block.

    Args:
        num_streams: Streams.
        delay_us: Longest random pause before an operator; 0 adds none.
        seed: Of the pauses.
        slow: A stream that pauses for 20 times as long; -1 is none.
    """

    def __init__(
        self, num_streams: int, delay_us: float = 0.0, seed: int = 0, slow: int = -1
    ) -> None:
        self.queues: list[SimpleQueue[Task]] = [SimpleQueue() for _ in range(num_streams)]
        self.delay_us = [delay_us * (20 if s == slow else 1) for s in range(num_streams)]
        self.random = [random.Random(f"{seed} {stream}") for stream in range(num_streams)]
        self.threads = [
            threading.Thread(target=self._work, args=(stream,), daemon=True)
            for stream in range(num_streams)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, stream: int, task: Callable[[], None]) -> None:
        """Add a task to a stream."""
        self.queues[stream].put(task)

    def pause(self, stream: int) -> None:
        """Sleep at random, on a stream's own thread."""
        if self.delay_us[stream]:
            time.sleep(self.random[stream].random() * self.delay_us[stream] * 1e-6)

    def close(self) -> None:
        """End the threads once their queues are empty."""
        for queue in self.queues:
            queue.put(None)
        for thread in self.threads:
            thread.join()

    def __enter__(self) -> "CpuStreams":
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _work(self, stream: int) -> None:
        """Run a stream's tasks in order."""
        with torch.inference_mode():
            while (task := self.queues[stream].get()) is not None:
                task()


class Query:
    """One run of a lowered GraphModule on CPU streams, told to them by the calling thread.

    Also a stream backend: what the graph's calls say goes to the worker threads.

    Args:
        streams: Where it runs.
    """

    def __init__(self, streams: CpuStreams) -> None:
        self.streams, self.current = streams, 0
        self.events: dict[int, threading.Event] = {}
        self.failed: list[BaseException] = []
        self.finished = threading.Event()

    def begin(self) -> None:
        """A query starts on stream 0."""
        self.current = 0

    def use(self, stream: int) -> None:
        """Operators go to ``stream`` from here on."""
        self.current = stream

    def record(self, event: int) -> None:
        """Record an event on the current stream."""
        done = self.events[event] = threading.Event()
        self.streams.put(self.current, done.set)

    def wait(self, event: int) -> None:
        """Let the current stream wait for an event."""
        done = self.events[event]
        self.streams.put(self.current, lambda: self._wait(done))

    def retire(self, *values: Any) -> None:
        """Keep the values until the query is finished."""

    def end(self) -> None:
        """Stream 0 says when it is done."""
        self.streams.put(0, self.finished.set)

    def launch(self, function: Callable[[], None]) -> None:
        """Run a function on the current stream; keep the first error."""
        stream = self.current

        def task() -> None:
            """Pause, then run."""
            self.streams.pause(stream)
            try:
                function()
            except BaseException as error:
                self.failed.append(error)

        self.streams.put(stream, task)

    def _wait(self, done: threading.Event) -> None:
        """Wait on a worker's thread, not for ever."""
        if not done.wait(PATIENCE_S):
            self.failed.append(GraceError(f"a stream waited {PATIENCE_S:.0f} s for an event"))


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

    def start(self, streams: CpuStreams, *inputs: Any) -> Callable[[], Any]:
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

    def run(self, streams: CpuStreams, *inputs: Any) -> Any:
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
