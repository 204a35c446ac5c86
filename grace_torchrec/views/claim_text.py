"""What a plan claims of time, in words: the headline figure, and what is not claimed.

Flow: PlanSummary -> *sentences* -> inspect, report, plan figure.
"""

from grace_torchrec.plans.claims import is_slower
from grace_torchrec.plans.summary import PlanSummary

MODELLED = "modelled from bytes and bandwidths, not measured"


def speed_text(summary: PlanSummary) -> str:
    """Return the gain that is claimed, or the loss that is modelled, as a figure with its kind.

    Args:
        summary: A plan whose times are known.
    """
    used = summary.verdicts().get("use", 0)
    if is_slower(summary.time_ratio):
        return f"modelled slower, {summary.time_ratio:.2f} times the speed of stock"
    if used and len(summary.doubted) == used:
        return "no gain in time is claimed"
    return f"modelled {summary.time_ratio:.2f} times the speed of stock"


def doubt_lines(summary: PlanSummary) -> list[str]:
    """Return what is not claimed and why, a sentence each; nothing where there is no doubt."""
    lines = []
    if doubted := summary.doubted:
        used = summary.verdicts().get("use", 0)
        alike = {table.doubt for table in doubted}
        why = doubted[0].doubt if len(alike) == 1 else "their reasons say why"
        lines.append(f"without a claim: {len(doubted):,} of {used:,} used tables: {why}")
    if summary.ids_for_a_launch is not None:
        lines.append(
            f"the gain is more than one kernel launch in batches of {summary.ids_for_a_launch:,} ids "
            "and more; smaller ones gain less than a launch"
        )
    return lines
