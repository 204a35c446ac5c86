"""Refresh: a new plan from live bags, made beside the running model, proven, and put in its place.

Flow: recorder -> drift -> *Refresher*: profile -> plan -> convert -> proof -> flip between batches.
A refresh runs in a thread of the lowest priority, one at a time.  Whatever goes wrong in it leaves
what runs as it was, and is written down.  Where no sums gain, or those that are there do not any
more, requests go to the stock model.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numba
from torch import nn

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.arguments import expect, expect_model, expect_number, expect_seconds, told
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.refusals import no_collection
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.serve.background import Turns, in_background
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.delta import Delta, check_rows, publish_delta
from grace_torchrec.serve.drift import Drift, drift
from grace_torchrec.serve.refresh_conversion import conversion_of
from grace_torchrec.serve.refresh_deltas import DeltaLog
from grace_torchrec.serve.refresh_proof import prove_caught_up, prove_it_answers
from grace_torchrec.serve.refresh_record import Refresh, Steps
from grace_torchrec.serve.served import Served
from grace_torchrec.serve.serving_place import Place, Serves, served_by
from grace_torchrec.traces.recorder import TraceRecorder

When = Literal["drift", "always"]
OVERDUE = ("stale", "worse than none", "no sums")
LEAST_BAGS = 100  # with an id, of the best recorded table; fewer make no plan


class Refresher:
    """Keeps what is served up to date with what is asked for.

    Args:
        model: The stock model: the float rows of every refresh, and the fall-back.  Only read.
        target: What is served now: a Served; an engine, which has ``replace(served)`` and
            ``use_stock(on)``; or None: the stock model.
        recorder: Samples live bags.
        memory: The machine that serves.
        options: Of the plans (default: those of the plan that is served).
        example: One batch: the model's positional arguments.
        served: What an engine serves now, if that is a Served; default: what it says.
        conversion: Arguments of ``convert`` beside model, plan and example; others are as what is
            served was converted.
        tolerance: See ``drift``.
        least_bags: Recorded bags with an id, of one table or more, without which nothing is refreshed.
        keep: Records of the history.
        clock: Seconds since the epoch (default: that of the recorder, by which bags are dated).

    Raises:
        NotSupported: the model holds no stock collection, or scripted models are asked for.
        GraceError: an argument is something else, or an engine answers with another one, with one
            whose rows are not the model's, or with a sharded one.

    An engine has one refresher: a second one takes it over, and the first one fails from then on.
    """

    def __init__(
        self,
        model: nn.Module,
        target: "Served | Serves | None",
        recorder: TraceRecorder,
        memory: MemoryModel,
        options: PlanOptions | None = None,
        *,
        example: tuple[Any, ...],
        served: Served | None = None,
        conversion: Mapping[str, Any] | None = None,
        tolerance: float = 0.02,
        least_bags: int = LEAST_BAGS,
        keep: int = 1000,
        clock: Callable[[], float] | None = None,
    ) -> None:
        expect_model("Refresher", model)
        expect("Refresher", "recorder", recorder, TraceRecorder)
        expect("Refresher", "memory", memory, MemoryModel)
        if options is not None:
            expect("Refresher", "options", options, PlanOptions)
        expect("Refresher", "example", example, tuple)
        expect_number("Refresher", "tolerance", tolerance, 0, 1)
        for name, count in (("least_bags", least_bags), ("keep", keep)):
            expect_number("Refresher", name, count, 0, whole=True)
        self._specs = table_specs(model)
        if not self._specs:
            raise no_collection("Refresher", model)
        if isinstance(target, Served):
            served = target
        elif isinstance(target, Serves):
            served = served_by(target, served, model)
        elif target is not None:
            raise GraceError(f"Refresher: target is {told(target)}; give a Served, engine or None")
        self._conversion = conversion_of(served, conversion or {}, options)
        self._place = Place(model, target, served, recorder)
        plan = served.plan if served is not None else None
        self._options = options or (plan.options if plan is not None else PlanOptions())
        self._model, self._recorder, self._memory = model, recorder, memory
        self._example, self._tolerance = example, tolerance
        self._least_bags, self._clock = least_bags, clock or recorder.clock
        self._planned_at = self._clock()  # later bags are not among those the plan was made from
        self._has_rare_ids = True  # the plan was made from a profile with every id, for all we know
        self._history: deque[Refresh] = deque(maxlen=keep)
        self._count, self._one_refresh = 0, threading.Lock()
        self._deltas = DeltaLog()
        self._turns: Turns[Refresher] | None = None
        numba.get_num_threads()  # starts numba's threads now: none may inherit the priority of ours

    @property
    def served(self) -> nn.Module:
        """What is served now: a Served, or the stock model.  Ask again for each batch.

        An engine whose ``use_stock`` somebody called answers with its stock model all the same.
        """
        return self._place.answering

    @property
    def plan(self) -> Plan | None:
        """The plan that is served; None while the stock model is."""
        return self._place.plan

    @property
    def history(self) -> tuple[Refresh, ...]:
        """What happened, the latest last."""
        return tuple(self._history)

    def drift(self) -> Drift | None:
        """Compare the plan that is served, None if there is none, with bags since it was made.

        A plan of a refresh is held against the ids that the next one would be made from.
        """
        plan, recorder = self.plan, self._recorder
        if plan is None:
            return None
        live = recorder.profile(min_support=1, since_s=self._planned_at)  # rare ids are read too
        like = None if self._has_rare_ids else recorder.profile(since_s=self._planned_at)
        return drift(plan, live, like=like, tolerance=self._tolerance)

    def refresh_now(self) -> Refresh:
        """Rebuild from what is recorded now, wait for the end, and return what happened.

        A failure is told in the record (``outcome``, ``error``), not raised.

        Raises:
            GraceError: another refresh runs.
        """
        return in_background(self._refresh_alone)

    def start(self, interval_s: float, when: When = "drift") -> "Refresher":
        """Look every ``interval_s`` seconds whether to refresh, until ``stop``; return self.

        An engine holds its refresher meanwhile, so both end together.  Any other must be held by who
        asks it for ``served``: one that nobody holds looks no more, which is logged.

        Args:
            interval_s: Above 0.
            when: ``drift``: when the plan is stale or worse than none, or nothing is stored;
                ``always``.

        Raises:
            GraceError: it is started already, or an argument is out of range.
        """
        if when not in get_args(When):
            raise GraceError(f"Refresher: when must be one of {get_args(When)}, got {when!r}")
        if self._turns is not None:
            raise GraceError("Refresher: started already; stop() first")
        expect_seconds("Refresher", "interval_s", interval_s)
        # What the thread holds must not lead back here, or a refresher that is dropped never ends.
        self._turns = Turns(
            self,
            lambda refresher: refresher._turn(when),
            interval_s,
            is_held=self._place.hold(self),
        )
        return self

    def stop(self) -> None:
        """Look no more; a refresh under way is waited for.  What is served stays."""
        if self._turns is not None:
            self._turns.stop()
            self._turns = None
            self._place.let_go(self)

    def __enter__(self) -> "Refresher":
        """Return the refresher."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self.stop()

    def publish_delta(self, delta: Delta) -> int:
        """Give trained rows to what is served, also if a refresh that missed them is under way.

        The rows must be in the model already: later refreshes, and the fall-back, read them there.
        Argument and errors are those of ``grace_torchrec.publish_delta``.

        Returns:
            The version of what is served, also while an engine answers with its stock model; 0
            where there is no Served.
        """
        with self._deltas.lock:
            self._place.check()
            served = self._place.live
            if served is None:  # the next model gets it: what is wrong with it is said now
                check_rows(self._specs, {spec.key: spec.dtype for spec in self._specs}, delta)
                version = 0
            else:
                version = publish_delta(served, delta)
            self._deltas.note(delta, version)
            return version

    def _refresh_alone(self) -> Refresh:
        """Refresh; the lock is held by the thread that works, whatever becomes of who waits for it."""
        if not self._one_refresh.acquire(blocking=False):
            raise GraceError("Refresher: a refresh runs already; wait for it")
        try:
            return self._refresh()
        finally:
            self._one_refresh.release()

    def _turn(self, when: When) -> None:
        """Refresh if it is time."""
        if not self._one_refresh.acquire(blocking=False):
            return
        try:
            found = self._checked_drift() if when == "drift" else None
            verdict = found.verdict if found is not None else None
            if found is not None and verdict == "worse than none":
                self._fall_back(found)
            if when == "always" or self.plan is None or verdict in OVERDUE:
                self._refresh(found)
        finally:
            self._one_refresh.release()

    def _fall_back(self, found: Drift) -> None:
        """Let the stock model answer at once."""
        steps, reason = Steps(self._clock(), found), "worse than none on live bags"
        try:
            self._place.use_stock()
            self._write_down(steps, "stock", reason)
        except Exception as error:  # an engine without a stock model, or one that is closed
            self._write_down(steps, "failed", reason, error)

    def _checked_drift(self) -> Drift | None:
        """Return the drift; an error is written down."""
        try:
            return self.drift()
        except Exception as error:
            self._write_down(Steps(self._clock()), "failed", "drift could not be measured", error)
            return None

    def _refresh(self, found: Drift | None = None) -> Refresh:
        """Rebuild and flip; return what happened."""
        steps = Steps(self._clock(), found or self._checked_drift())
        try:
            outcome, reason = self._rebuild(steps)
            return self._write_down(steps, outcome, reason)
        except Exception as error:
            return self._write_down(steps, "failed", f"while it {steps.name}", error)
        finally:
            self._deltas.end()

    def _rebuild(self, steps: Steps) -> tuple[str, str]:
        """Take every step; return outcome and reason."""
        steps.begin("took the sample")
        planned_at = self._clock()
        profile = self._recorder.profile()
        steps.bags = max((table.trace.num_bags for table in profile.tables.values()), default=0)
        if steps.bags < self._least_bags:
            return "skipped", f"{steps.bags} bags are recorded, {self._least_bags} are needed"
        steps.begin("planned")
        plan = make_plan(self._specs, profile, self._memory, self._options)
        steps.plan = plan
        why_not = self._why_not(plan)
        if why_not:
            self._place.use_stock()
            return "stock", why_not
        steps.begin("converted")
        before = self._place.live
        self._deltas.begin(before)
        served = convert(self._model, plan, example=self._example, **self._conversion)
        steps.begin("proved")
        prove_it_answers(served, self._example)
        caught_up = prove_caught_up(self._model, served, profile, self._deltas, steps)
        steps.begin("flipped")
        with self._deltas.lock:
            caught_up += self._deltas.catch_up(served)
            if before is not None and before.version != self._deltas.version:
                raise GraceError(
                    "rows were published to the served model itself meanwhile; publish them with "
                    "Refresher.publish_delta"
                )
            self._place.replace(served)
        self._planned_at, self._has_rare_ids = planned_at, False
        return "flipped", f"caught up with {caught_up} deltas" if caught_up else ""

    def _why_not(self, plan: Plan) -> str:
        """Return why a new plan is not worth serving, or nothing.

        It was made without the rare ids, which it is served with: so it is held against these too.
        """
        if all(table.verdict == "leave stock" for table in plan.tables.values()):
            reasons = sorted({table.reason for table in plan.tables.values()})
            return f"no table gains: {'; '.join(reasons)}"
        found = drift(plan, self._recorder.profile(min_support=1), tolerance=self._tolerance)
        if found.verdict == "worse than none":
            return "the new plan is worse than none on the recorded bags, with their rare ids"
        return ""

    def _write_down(
        self, steps: Steps, outcome: str, reason: str, error: Exception | None = None
    ) -> Refresh:
        """Keep a record."""
        self._count += 1
        record = steps.record(self._count, outcome, reason, error)
        self._history.append(record)
        return record
