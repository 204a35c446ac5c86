"""What a profile holds, as text.

Flow: summary of a written profile -> *lines* -> ``profile``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

CUT_SHORT = {
    "bags_capped": "bags cut to a sample of their ids",
    "ids_dropped": "ids left out of the longer bags",
    "pairs_dropped": "pairs of ids that this leaves out",
}


def profile_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was written and what was left out of it.

    Args:
        summary: What ``profile --json`` prints.
    """
    yield f"wrote {summary['profile']}: table {summary['table']}, read by {', '.join(summary['features'])}"
    yield (
        f"{summary['bags']:,} bags of {summary['pooling_factor']:.1f} ids on average, "
        f"{summary['items']:,} items, {summary['ids']:,} ids"
    )
    if summary["bags"] < summary["bags_read"]:
        yield f"sampled from {summary['bags_read']:,} bags"
    for name, what in CUT_SHORT.items():
        if summary[name]:
            yield f"{summary[name]:,} {what}"
    if summary["lines_skipped"]:
        yield (
            f"{summary['lines_skipped']:,} bad lines skipped, the first: {summary['first_skipped']}"
        )
    if summary["names"]:
        yield f"wrote {summary['names']}: the name of each row, one a line"
    yield from (f"note: {note}" for note in summary["notes"])
    yield f"fingerprint {summary['fingerprint']}"
