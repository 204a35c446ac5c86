"""Drift: what a plan said its sums would save, against what they save of live bags.

Flow: Plan + Profile of live bags -> *drift* -> verdict of each table -> Refresher, people.
Live bags are rewritten by the op that serves.  They must be bags that the plan was not made from:
``recorder.profile(since_s=...)``.
Like is compared with like.  A plan that was made without rare ids (``min_support``) predicts a cut of
the other ids: whether it grew stale is asked of those ids of the live bags, ``like``; a plan that is
made anew would be made without the rare ones too.  Whether it pays is asked of all: rare ids are read,
and their code is.
Derived, not from the paper: the interval, the break-even and the verdicts.
The cut of B bags is ``1 - sum r / sum n``, ``r`` rows read and ``n`` ids of a bag.  Its interval is
normal, by linearisation of the ratio: standard error ``sqrt(B / (B - 1) * sum (r - R n)^2) / sum n``
with ``R = sum r / sum n``.  A table breaks even at the cut at which its modelled time is that of the
stock table: ``time / stock - (1 - predicted cut)``, what reading the code costs; or at the least gain
that the plan's options ask for, if that is more.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from grace_torchrec.arguments import expect
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.choose import as_served
from grace_torchrec.plans.make import check_profile_fits
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.trace import Trace

DriftVerdict = Literal["fine", "stale", "worse than none", "no sums", "too few bags"]
JUDGED = ("fine", "stale", "worse than none")
LEAST_BAGS = 50  # with an id; fewer make no normal interval


@dataclass(frozen=True)
class LiveCut:
    """A cut of some bags, and how sure it is.

    Attributes:
        cut: Share of the reads that the sums save.
        low: Lower end of the interval.
        high: Upper end.
        bags: Bags behind it, empty ones not counted.
        ids: Ids of these bags.
    """

    cut: float
    low: float
    high: float
    bags: int
    ids: int


@dataclass(frozen=True)
class TableDrift:
    """One table.

    Attributes:
        table: Key of the table.
        verdict: ``fine``; ``stale``: the cut is below the prediction by more than the tolerance,
            surely; ``worse than none``: it is below the break-even, surely; ``no sums``: left
            stock; ``too few bags``.
        predicted: Cut that the plan predicts.
        live: Cut of the live bags; the break-even is a bound on it.
        like: Cut of those of their ids that the prediction counts; the tolerance is for it.
        break_even: The cut below which the table is better left stock.
    """

    table: str
    verdict: DriftVerdict
    predicted: float
    live: LiveCut
    like: LiveCut
    break_even: float


@dataclass(frozen=True)
class Drift:
    """All tables of a plan.

    Attributes:
        tables: Table key -> its drift.
        tolerance: How far a cut may fall below the prediction.
        confidence: Of the intervals.
    """

    tables: Mapping[str, TableDrift]
    tolerance: float
    confidence: float

    @property
    def verdict(self) -> DriftVerdict:
        """``worse than none`` if all tables that are judged are, ``stale`` if one is not fine."""
        found = [table.verdict for table in self.tables.values() if table.verdict in JUDGED]
        if not found:
            some = any(table.verdict == "too few bags" for table in self.tables.values())
            return "too few bags" if some else "no sums"
        if all(verdict == "worse than none" for verdict in found):
            return "worse than none"
        return "fine" if all(verdict == "fine" for verdict in found) else "stale"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"verdict": self.verdict, **asdict(self)}


def drift(
    plan: Plan,
    live: Profile,
    *,
    like: Profile | None = None,
    tolerance: float = 0.02,
    confidence: float = 0.95,
) -> Drift:
    """Compare the predicted cut of every table with that of live bags.

    Args:
        plan: What is served.
        live: Bags that came after those that the plan was made from, with every id.
        like: The same bags without the ids that would be left out of a profile to plan from, as they
            were of the plan's (default: ``live``, for plans from profiles with every id).
        tolerance: How far a cut may fall below the prediction, 0..1.
        confidence: Of the intervals, above 0 and below 1.

    Raises:
        GraceError: an argument is something else, or a number is out of range.
        PlanMismatch: the bags are not those of the tables of this plan.

    A verdict but ``fine`` is given only where the whole interval says so.
    """
    expect("drift", "tolerance", tolerance, Real)
    expect("drift", "confidence", confidence, Real)
    if not 0 <= tolerance < 1 or not 0 < confidence < 1:
        raise GraceError(
            f"drift: give tolerance in 0..1 and confidence in 0..1, got {tolerance}, {confidence}"
        )
    expect("drift", "plan", plan, Plan)
    expect("drift", "live", live, Profile)
    specs = [table.spec for table in plan.tables.values()]
    for profile in (live, like):
        if profile is not None:
            check_profile_fits(profile, specs)
    found = {}
    for key, table in plan.tables.items():
        cuts = _cut_of(table, live, confidence)
        found[key] = _table_drift(
            table, cuts, cuts if like is None else _cut_of(table, like, confidence),
            plan.options.min_gain, tolerance,
        )  # fmt: skip
    return Drift(found, tolerance, confidence)


def live_cut(trace: Trace, sums: StoredSums | None, confidence: float = 0.95) -> LiveCut:
    """Measure the cut of sums on bags, with its interval.

    Args:
        trace: Bags.
        sums: What is stored; None: nothing.
        confidence: Of the interval.
    """
    ids_B = np.diff(trace.offsets_B1)
    bags, ids = int(np.count_nonzero(ids_B)), trace.num_ids
    if sums is None or not sums.num_sums or not ids:
        return LiveCut(0.0, 0.0, 0.0, bags, ids)
    rows_B = np.diff(rewrite(trace, sums).offsets_B1)
    ratio = float(rows_B.sum()) / ids
    if bags < 2:
        return LiveCut(1 - ratio, 0.0, 1.0, bags, ids)
    residual = float(((rows_B - ratio * ids_B) ** 2).sum())
    error = math.sqrt(bags / (bags - 1) * residual) / ids
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * error
    return LiveCut(1 - ratio, max(0.0, 1 - ratio - reach), min(1.0, 1 - ratio + reach), bags, ids)


def break_even(table: TablePlan, min_gain: float) -> float:
    """Return the cut below which a table is better left stock.

    A table that is planned though it is slower alone, for its rows balance two memories that all
    tables share, has no such cut of its own: there it is the least gain.
    """
    told = table.predicted
    if told.time_s > told.stock_s or not told.stock_s:
        return min_gain
    return max(min_gain, told.time_s / told.stock_s - (1 - told.cut))


def _cut_of(table: TablePlan, bags: Profile, confidence: float) -> LiveCut:
    """Measure what a table saves of its bags in a profile."""
    profiled = bags.tables.get(table.spec.name)
    if profiled is None:
        return LiveCut(0.0, 0.0, 0.0, 0, 0)
    return live_cut(as_served(profiled.trace, table.spec), table.sums, confidence)


def _table_drift(
    table: TablePlan, live: LiveCut, like: LiveCut, min_gain: float, tolerance: float
) -> TableDrift:
    """Judge one table."""
    least, told = break_even(table, min_gain), table.predicted.cut
    verdict: DriftVerdict = "fine"
    if not table.num_sums:
        verdict = "no sums"
    elif live.bags < LEAST_BAGS:
        verdict = "too few bags"
    elif live.high < least:
        verdict = "worse than none"
    elif like.bags >= LEAST_BAGS and like.high < told - tolerance:
        verdict = "stale"
    return TableDrift(table.spec.key, verdict, told, live, like, least)
