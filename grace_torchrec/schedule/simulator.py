"""Simulator: latencies of concurrent queries under RecOS and its rivals, without a GPU.

Flow: OpGraph + OpStats -> *Workload*; Policy, Calibration, load -> *Simulated*.
Source: RecOS, IJCAI'25, sections 2 to 4.  Derived: the machine model (a host thread for each
query, one driver lock, streams in order, processors shared by grid size, locks of the caches) and
every number of the calibration, fitted to five printed gains.  It shows that the paper's figures
are consistent with these rules; it is no evidence that a GPU behaves so.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule import _simulator_core
from grace_torchrec.schedule import _simulator_state as core
from grace_torchrec.schedule.csr import csr
from grace_torchrec.schedule.fusing import Workload
from grace_torchrec.schedule.priority import priority
from grace_torchrec.schedule.stream_choice import chains

CALIBRATIONS = Path(__file__).parent / "calibrations"


@dataclass(frozen=True)
class Calibration:
    """Numbers of the simulated machine; microseconds where they end in ``_us``.

    Attributes:
        streams: Streams of every policy but the single-stream one.
        processors: Streaming multiprocessors.
        framework_us: Host time to prepare an operator, on the query's own thread.
        driver_us: Time of a launch under the driver's lock.
        decision_us: Host time of a scheduling decision.
        event_us: Host time of an event call.
        sync_us: How long a naive executor takes to see that an operator is done.
        gap_us: Gap between two operators of one stream.
        wait_us: Device time of a wait.
        lock_factor: Share of its own time that an embedding loses to each other lock holder.
        locks: Locks of the caches; embeddings share them in turn; 0 turns locks off.
        interference: Slow-down for each other running operator.
        threshold: Load, in whole GPUs, above which the second shortest stream is taken.
        jitter: Spread of host and device times.
        start_rule: Start index: 0 half round, 1 next, 2 sum, 3 difference, 4 always the first.
    """

    streams: int = 4
    processors: int = 56
    framework_us: float = 80.0
    driver_us: float = 3.0
    decision_us: float = 0.5
    event_us: float = 0.6
    sync_us: float = 160.0
    gap_us: float = 1.0
    wait_us: float = 1.0
    lock_factor: float = 8.0
    locks: int = 8
    interference: float = 0.1
    threshold: float = 2.0
    jitter: float = 0.2
    start_rule: int = 0

    @classmethod
    def named(cls, name: str = "a30") -> "Calibration":
        """Return a calibration file of this package.

        Raises:
            GraceError: there is no such file, or it holds other names.
        """
        path = CALIBRATIONS / f"{name}.json"
        if not path.is_file():
            known = sorted(file.stem for file in CALIBRATIONS.glob("*.json"))
            raise GraceError(f"calibration {name!r}: not one of {', '.join(known)}; choose one")
        values = json.loads(path.read_text(encoding="utf-8"))["values"]
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise GraceError(f"{path}: unknown {sorted(unknown)[0]!r}; take it out")
        return cls(**values)


@dataclass(frozen=True)
class Policy:
    """How a serving system launches operators.

    Attributes:
        name: As in the paper.
        placement: One of the placements of the core.
        sync: How an operator learns that its inputs are there.
        urgent_first: DepValue order, embeddings rotated; else in the order they became ready.
        avoid_locks: An embedding goes to a stream that already holds its lock.
    """

    name: str
    placement: int
    sync: int
    urgent_first: bool = False
    avoid_locks: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("TSSS", core.SINGLE, core.ASYNC),
        Policy("TSMS", core.ROUND_ROBIN, core.NAIVE),
        Policy("MSSS", core.BY_QUERY, core.ASYNC),
        Policy("StreamRec", core.CHAIN, core.NAIVE),
        Policy("Opara", core.CHAIN, core.NAIVE),
        Policy("RecOS", core.MONITOR, core.EVENTS, True, True),
    )
}
RECOS = POLICIES["RecOS"]
ABLATIONS = {  # RecOS without one of its parts
    "stream management": replace(RECOS, placement=core.BY_QUERY, name="by query"),
    "cache conflict avoidance": replace(RECOS, avoid_locks=False, name="meets locks"),
    "topology-aware order": replace(RECOS, urgent_first=False, name="in order of readiness"),
    "workload monitor": replace(RECOS, placement=core.BLIND, name="streams in turn"),
    "tensor management": replace(RECOS, sync=core.NAIVE, name="naive waiting"),
}


@dataclass(frozen=True, eq=False)
class Simulated:
    """What came out of a simulation.

    Attributes:
        latency_us: Of every query that counts, in order of arrival.
        utilisation: Share of the processors that was busy.
        driver_share: Share of the time that the driver's lock was held.
        contended_share: Share of the embeddings that met a held lock.
        monitor_error_us: Mean difference of predicted and real completion.
    """

    latency_us: npt.NDArray[np.float64]
    utilisation: float
    driver_share: float
    contended_share: float
    monitor_error_us: float

    @property
    def mean_us(self) -> float:
        """Mean latency."""
        return float(self.latency_us.mean())

    @property
    def p99_us(self) -> float:
        """99th percentile of the latency."""
        return float(np.quantile(self.latency_us, 0.99))


def simulate(
    workload: Workload,
    policy: Policy,
    calibration: Calibration,
    *,
    clients: int = 0,
    queries_per_client: int = 14,
    arrivals_us: Sequence[float] = (),
    most_in_flight: int = 64,
    seed: int = 1,
) -> Simulated:
    """Simulate a closed loop of ``clients``, or the arrivals of an open loop.

    Args:
        workload: The model.
        policy: How its operators are launched.
        calibration: The machine.
        clients: Clients that each keep one query in flight; the first query of each is not counted.
        queries_per_client: Queries of each that count.
        arrivals_us: Times of an open loop, ascending.
        most_in_flight: Queries served at once in an open loop; others wait.
        seed: Of jitter.

    Raises:
        GraceError: neither or both loads are given.
    """
    if bool(clients) == bool(len(arrivals_us)):
        raise GraceError("simulate: give clients (closed loop) or arrivals_us (open loop)")
    warm = clients
    total = clients * (queries_per_client + 1) if clients else len(arrivals_us)
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 5, clients)) if clients else np.array(arrivals_us, float)
    model = _model(workload, policy, calibration)
    rules = _rules(policy, calibration, max(1, int(model.turn_n.max(initial=0)) + 1))
    state = _state(model, rules, clients or most_in_flight, total, arrivals.size)
    _simulator_core.run(state, model, rules, arrivals, bool(clients), seed)
    now, count = state.clock[core.NOW], state.count
    return Simulated(
        state.latency[warm:],
        float(state.clock[core.BUSY] / (calibration.processors * now)),
        float(state.clock[core.DRIVER] / now),
        float(count[core.CONTENDED] / max(count[core.EMBEDDINGS], 1)),
        float(state.clock[core.ERROR] / max(count[core.TIMED], 1)),
    )


def _model(workload: Workload, policy: Policy, calibration: Calibration) -> core.Model:
    """Return the arrays of a model."""
    graph, stats = workload.graph, workload.stats
    is_table = [op.kind == "embedding" for op in graph.ops]
    turn = np.where(is_table, np.cumsum(is_table) - 1, -1)
    locks = calibration.locks
    lock = np.where(turn >= 0, turn % locks, -1) if locks else np.full(turn.size, -1)
    needs = [list(op.needs) for op in graph.ops]
    return core.Model(
        np.array(stats.times_us), np.array(stats.grids, np.int64), lock, turn,
        np.array(chains(graph), np.int64), priority("dep_local", graph, stats),
        *csr(needs), *csr(graph.needed_by()),
    )  # fmt: skip


def _rules(policy: Policy, calibration: Calibration, tables: int) -> core.Rules:
    """Return the numbers of a policy on a machine."""
    c = calibration
    streams = 1 if policy.placement == core.SINGLE else c.streams
    return core.Rules(
        policy.placement, policy.sync, int(policy.urgent_first), int(policy.avoid_locks),
        c.start_rule, streams, c.processors, c.framework_us, c.driver_us, c.decision_us,
        c.event_us, c.sync_us, c.gap_us, c.wait_us, c.lock_factor, c.interference, c.threshold,
        c.jitter, tables,
    )  # fmt: skip


def _state(
    model: core.Model, rules: core.Rules, slots: int, total: int, arrivals: int
) -> core.State:
    """Return the state before the first event."""
    n, s = model.time_n.size, rules.streams
    cap = slots * n + 1
    locks = int(model.lock_n.max(initial=0)) + 1

    def ints(*shape: int) -> Any:
        """Return zeros."""
        return np.zeros(shape, np.int64)

    return core.State(
        np.zeros(5), ints(16), np.zeros(arrivals + cap + slots), ints(arrivals + cap + slots, 4),
        ints(s, cap, 2), np.zeros((s, cap, 2)), ints(s), ints(s), np.full((s, 2), -1), np.zeros(s),
        np.zeros(s), np.zeros(s), ints(locks), ints(s, locks), np.zeros((slots, n), np.bool_),
        ints(slots, n), ints(slots, n), np.full((slots, n), np.inf), ints(slots), np.zeros(slots),
        ints(slots), ints(slots), ints(slots), np.zeros(slots, np.bool_), ints(slots, 2),
        np.zeros(total), np.zeros(arrivals + 1),
    )  # fmt: skip
