"""Steady clock: seconds since the epoch that neither jump nor go back while the process lives.

Flow: recorder and refresher tell what came before what, and how long ago, by it.  A machine whose
clock is set meanwhile would else hold bags of the past for new ones, or new ones for old.
"""

import time

_EPOCH_S = time.time() - time.monotonic()  # as the machine's clock stood when this was imported


def steady_time() -> float:
    """Return the seconds since the epoch."""
    return _EPOCH_S + time.monotonic()
