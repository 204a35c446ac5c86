"""The pass: trace, profile, schedule, lower, prove.

Flow: model + example -> *schedule_* -> Scheduled: a GraphModule whose nodes steer the streams.
Three parts, as passes have: *requires* (may it be scheduled), *call* (the new graph), *ensures*
(the graph that was written is what was proven).  A model that is refused runs as it did, on one
stream, and the result says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from grace_torchrec.arguments import expect, expect_model, expect_number
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.schedule.backends import CudaBackend, StreamBackend
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.graph_module import (
    STREAMS,
    attach,
    is_lowered,
    read_steps,
    refusing_pickle,
    to_graph_module,
)
from grace_torchrec.schedule.in_flight import Proof, prove
from grace_torchrec.schedule.lower import Lowered, lower
from grace_torchrec.schedule.observed import why_unlike
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.profiling import profile_cpu, profile_cuda
from grace_torchrec.schedule.resources import resource_pins
from grace_torchrec.schedule.same_values import same_values
from grace_torchrec.schedule.schedule import Machine, Schedule, single_stream, why_single_stream
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import (
    LEAVES,
    code_hash,
    example_refused,
    op_graph,
    trace,
)


@dataclass(frozen=True)
class Scheduled:
    """What became of a model.

    Attributes:
        module: The lowered GraphModule, or the model as it was.
        modified: Whether it was changed.
        reason: Why it was not, if so.
        schedule: Its schedule; None where it could not be traced.
        lowered: The steps that the module takes; None where nothing was changed.
        proof: The race check of exactly these steps; None where nothing was changed.
        stats: Costs of its operators; None where it could not be traced.
        code: Hash of the traced nodes with their arguments; empty where it could not be traced.
    """

    module: nn.Module
    modified: bool
    reason: str | None = None
    schedule: Schedule | None = None
    lowered: Lowered | None = None
    proof: Proof | None = None
    stats: OpStats | None = None
    code: str = ""


def schedule_(
    model: nn.Module,
    example: tuple[Any, ...],
    streams: int = 4,
    *,
    stats: OpStats | None = None,
    wait_us: float = 1.0,
    reads: Mapping[str, Iterable[str]] | None = None,
    writes: Mapping[str, Iterable[str]] | None = None,
    leaves: Iterable[str] = LEAVES,
    queries: int = 3,
    backend: StreamBackend | None = None,
) -> Scheduled:
    """Schedule a model's operators over streams; a GraphModule is changed in place.

    Args:
        model: In eval mode.
        example: Positional arguments of one batch, on the model's device. Copies of it are computed a few
            times; what a model counts, or keeps in buffers, goes on meanwhile.
        streams: Streams at most.
        stats: Costs of its operators; default: they are profiled with ``example``.
        wait_us: Time until another stream sees that an operator is done.
        reads: Operator -> resources it reads (weights that deltas write).
        writes: Operator -> resources it writes (caches); modules say theirs in
            ``mutable_resources``.
        leaves: Class names that stay one operator.
        queries: Queries in flight that the race check covers.
        backend: What carries the streams out; default: CUDA streams on a GPU, else nothing.

    Raises:
        NotSupported: the model is in training mode.
        GraceError: the example is not a batch of the model.
        PlanMismatch: ``stats`` belong to another model.
        GraceError: a resource is given for an operator that is not there, or a number is out of
            range.
    """
    expect_model("schedule_", model)
    expect("schedule_", "example", example, tuple)
    expect_number("schedule_", "streams", streams, 1, whole=True)
    expect_number("schedule_", "queries", queries, 1, whole=True)
    expect_number("schedule_", "wait_us", wait_us, 0)
    machine = Machine(streams, wait_us)
    if is_lowered(model):
        found: Scheduled = vars(model)["meta"]["grace_scheduled"]
        return Scheduled(
            model, False, "it is scheduled already", found.schedule, found.lowered, found.proof,
            found.stats, found.code,
        )  # fmt: skip
    if model.training:
        raise NotSupported(f"{type(model).__name__}: in training mode; call model.eval() first")
    try:
        gm, graph = requires(model, example, reads or {}, writes or {}, leaves)
    except NotSupported as error:
        return Scheduled(model, False, str(error))
    costs = stats or _profile(gm, graph, example)
    costs.check(graph)
    code = code_hash(gm)
    reason = why_single_stream(graph, streams)
    if reason is not None:
        one = single_stream(graph, costs, machine, reason)
        return Scheduled(model, False, reason, one, stats=costs, code=code)
    schedule = make_schedule(graph, costs, machine, pins=resource_pins(graph, costs, streams))
    if schedule.num_streams == 1 or schedule.makespan_us >= sum(schedule.times_us):
        reason = "no schedule is shorter than one stream within the limit on bytes held"
        one = single_stream(graph, costs, machine, reason)
        return Scheduled(model, False, reason, one, stats=costs, code=code)
    into = model if isinstance(model, fx.GraphModule) else None
    carried = carried_out(gm, schedule, costs, example, into=into, queries=queries, backend=backend)
    return carried if carried.modified else replace(carried, module=model)


def carried_out(
    gm: fx.GraphModule,
    schedule: Schedule,
    costs: OpStats,
    example: tuple[Any, ...],
    *,
    into: fx.GraphModule | None = None,
    queries: int = 3,
    backend: StreamBackend | None = None,
) -> Scheduled:
    """Lower a schedule of several streams and prove its steps.

    The traced model is returned, with a reason, where the lowered one is seen to differ from it.

    Args:
        gm: The traced model.
        schedule: Of its operators.
        costs: Of its operators.
        example: Positional arguments of one batch.
        into: A GraphModule that gets the new graph in place; default: a new one.
        queries: Queries in flight that the race check covers.
        backend: What carries the streams out; default: CUDA streams on a GPU, else nothing.

    Raises:
        GraceError: the check found a race; nothing was changed.
    """
    code = code_hash(gm)
    module = call(gm, schedule)
    lowered, proof = ensures(module, schedule, queries)
    reason = why_unlike(gm, module, example)
    if reason is not None:
        one = single_stream(schedule.graph, costs, schedule.machine, reason)
        return Scheduled(gm, False, reason, one, stats=costs, code=code)
    if into is not None:
        module = _written_into(into, module)
    if backend is None and _device(example).type == "cuda":
        backend = CudaBackend(schedule.num_streams)
    if backend is not None:
        attach(module, backend)
    result = Scheduled(module, True, None, schedule, lowered, proof, costs, code)
    vars(module)["meta"]["grace_scheduled"] = result
    return result


def requires(
    model: nn.Module,
    example: tuple[Any, ...],
    reads: Mapping[str, Iterable[str]],
    writes: Mapping[str, Iterable[str]],
    leaves: Iterable[str] = LEAVES,
) -> tuple[fx.GraphModule, OpGraph]:
    """Trace a model; return it with its operators and their resources.

    Raises:
        NotSupported: it cannot be traced, or its trace does not compute what it computes.
        GraceError: a resource is given for an operator that is not there.
    """
    gm = trace(model, leaves)
    if gm is not model and not gm.training:
        _same_results(model, gm, example)
    graph = op_graph(gm, type(model).__name__, touched(gm, cloned(example)))
    return gm, graph.with_resources(reads, writes)


def call(gm: fx.GraphModule, schedule: Schedule) -> fx.GraphModule:
    """Return the lowered GraphModule of a schedule."""
    return to_graph_module(gm, lower(schedule))


def ensures(gm: fx.GraphModule, schedule: Schedule, queries: int) -> tuple[Lowered, Proof]:
    """Read the steps back from a lowered GraphModule and prove them free of races.

    Raises:
        GraceError: the check found a race; nothing was changed.
    """
    lowered = read_steps(gm, schedule)
    proof = prove(lowered, queries)
    if proof.races:
        raise GraceError(
            f"schedule of {schedule.graph.name!r}: {len(proof.races)} races, the first: "
            f"{proof.races[0]}; nothing was changed, run it on a single stream"
        )
    return lowered, proof


def _profile(gm: fx.GraphModule, graph: OpGraph, example: tuple[Any, ...]) -> OpStats:
    """Profile on the device of the example."""
    if _device(example).type == "cuda":
        return profile_cuda(gm, graph, example)
    return profile_cpu(gm, graph, example)


def _device(example: tuple[Any, ...]) -> torch.device:
    """Return the device of the first tensor."""
    leaves = torch.utils._pytree.tree_leaves(example)
    return next((t.device for t in leaves if isinstance(t, Tensor)), torch.device("cpu"))


def _same_results(model: nn.Module, gm: fx.GraphModule, example: tuple[Any, ...]) -> None:
    """Refuse a trace that computes something else on the example.

    Raises:
        GraceError: the example is not a batch of this model.
        NotSupported: the trace computes something else.
    """
    given, given_trace = cloned(example), cloned(example)
    with torch.inference_mode():
        try:
            answer = model(*given)
        except Exception as error:  # whatever the model's own code raises
            raise example_refused(type(model).__name__, error) from error
        found = gm(*given_trace)
    if not same_values((answer, given), (found, given_trace)):
        raise NotSupported(
            f"{type(model).__name__}: its trace computes other values on the example "
            "(code that depends on data); it keeps running on a single stream"
        )


def _written_into(model: fx.GraphModule, lowered: fx.GraphModule) -> fx.GraphModule:
    """Give a GraphModule the lowered graph and its module ``streams``."""
    model.add_module(STREAMS, lowered.get_submodule(STREAMS))
    model.graph = lowered.graph  # which compiles it
    return refusing_pickle(model)
