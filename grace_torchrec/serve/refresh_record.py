"""Refresh records: what a refresh did, step by step, as plain values.

Flow: Refresher -> *Steps* while it runs -> *Refresh* in its history.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from grace_torchrec.plans.plan import Plan
from grace_torchrec.serve.drift import Drift

Outcome = Literal["flipped", "stock", "skipped", "failed"]


@dataclass(frozen=True)
class Refresh:
    """One refresh.

    Attributes:
        number: From 1, over the life of the refresher.
        at: When it began, seconds since the epoch.
        outcome: ``flipped``: the new model answers; ``stock``: no sums gain, the stock model
            answers; ``skipped``: too few bags; ``failed``: what ran still runs.
        reason: Why, in a sentence; may be empty.
        error: What was raised, where it failed.
        seconds: Step -> how long it took.
        bags: Bags of the best recorded table.
        drift: Verdict over the plan that was served before, if one was.
        live_cuts: Table -> cut of that plan on bags that came after it was made.
        predicted_cuts: Table -> cut that the new plan predicts.
        worst: Largest difference from the stock model over what rounding allows.
    """

    number: int
    at: float
    outcome: Outcome
    reason: str
    error: str
    seconds: dict[str, float]
    bags: int
    drift: str | None
    live_cuts: dict[str, float]
    predicted_cuts: dict[str, float]
    worst: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON takes them."""
        return asdict(self)


class Steps:
    """What a refresh has come to.

    Args:
        at: When it began.
        drift: Of the plan that is served.

    Attributes:
        name: Of the step under way.
        bags: See ``Refresh``.
        plan: The new plan, once it is made.
        worst: See ``Refresh``.
    """

    def __init__(self, at: float, drift: Drift | None = None) -> None:
        self.at, self.drift, self.name = at, drift, "began"
        self.bags, self.plan, self.worst = 0, cast(Plan | None, None), cast(float | None, None)
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def begin(self, name: str) -> None:
        """Begin the next step, called by what it does, in the past tense."""
        self._end()
        self.name = name

    def record(self, number: int, outcome: str, reason: str, error: Exception | None) -> Refresh:
        """Return all of it."""
        self._end()
        plan, live = self.plan, self.drift
        return Refresh(
            number=number,
            at=self.at,
            outcome=cast(Outcome, outcome),
            reason=reason,
            error="" if error is None else f"{type(error).__name__}: {error}",
            seconds=dict(self._seconds),
            bags=self.bags,
            drift=live.verdict if live else None,
            live_cuts={k: t.live.cut for k, t in live.tables.items()} if live else {},
            predicted_cuts={k: t.predicted.cut for k, t in plan.tables.items()} if plan else {},
            worst=self.worst,
        )

    def _end(self) -> None:
        """Note how long the step took."""
        now = time.perf_counter()
        if self.name != "began":
            self._seconds[self.name] = self._seconds.get(self.name, 0.0) + now - self._since
        self._since = now
