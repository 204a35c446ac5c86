"""Threads: how many share the counting of pairs."""

import os

LEAST_IDS_TO_SHARE = 1 << 16  # below, a second thread costs more than it brings


def counting_threads(num_ids: int, asked: int | None = None) -> int:
    """Return how many threads count.

    Args:
        num_ids: Ids of the bags; few are counted by one.
        asked: What the caller asked for; default: the processors of this process.
    """
    if num_ids < LEAST_IDS_TO_SHARE:
        return 1
    return asked or len(os.sched_getaffinity(0))
