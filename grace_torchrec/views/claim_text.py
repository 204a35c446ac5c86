"""What a plan claims of time, in words: the headline figure, and what is not claimed.

Flow: PlanSummary -> *sentences* -> inspect, report, plan figure.
"""

from grace_torchrec.plans.claims import is_slower
from grace_torchrec.plans.summary import PlanSummary
from grace_torchrec.views.numbers import bytes_text, seconds_text

MODELLED = "modelled from bytes and bandwidths, not measured"


def speed_text(summary: PlanSummary) -> str:
    """Return the gain that is claimed, or the loss that is modelled, as a figure with its kind.

    Args:
        summary: A plan whose times are known.
    """
    used = summary.verdicts().get("use", 0)
    if is_slower(summary.time_ratio):
        return f"modelled slower, {summary.time_ratio:.2f} times the speed of stock"
    if not used and round(summary.time_ratio, 2) == 1:
        return "as the stock model, no table is used"
    if used and len(summary.doubted) == used:
        return "no gain in time is claimed"
    return f"modelled {summary.time_ratio:.2f} times the speed of stock"


def claimed_text(summary: PlanSummary) -> str:
    """Return the time as far as a gain is claimed, where it is not the modelled one; else nothing."""
    claimed_s, time_s = summary.claimed_s, summary.time_s
    if claimed_s is None or time_s is None or seconds_text(claimed_s) == seconds_text(time_s):
        return ""
    return f"; as far as a gain is claimed {seconds_text(claimed_s)}"


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


def host_lines(summary: PlanSummary) -> list[str]:
    """Return why rows are in host memory for which HBM has room, and what keeps them in HBM."""
    alone_s = summary.all_in_hbm_s
    if alone_s is None:
        return []
    (host,) = [part for part in summary.tiers if part.tier == "host"]
    return [
        f"{bytes_text(host.bytes or 0)} are in host memory though HBM has room: both memories are "
        f"read at the same time, so HBM is done earlier (modelled {seconds_text(summary.time_s or 0.0)}, "
        f"all in HBM {seconds_text(alone_s)}); a machine with host_bytes=0 (--host-bytes 0) keeps all in HBM"
    ]
