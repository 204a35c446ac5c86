"""Priority: threads that work beside requests and must not take their time.

Flow: snapshots of a recorder, refreshes -> *lower_priority* first thing.
"""

import os
import sys
import threading

LOWEST = 19  # nice value


def lower_priority() -> None:
    """Let the kernel prefer other threads to this one and to those it starts, where it can (Linux)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
