"""FAE: the hottest rows in the fast memory, no sums (Adnan et al., VLDB'22).

It moves reads between memories and cuts none: in ``traffic`` it stores no sum and its cut is 0.
Written anew from the paper's description; hot rows keep their ids.
"""

import numpy as np
import numpy.typing as npt

from bench.stored import Stored
from grace_torchrec.traces.trace import Trace


def hot_items(train: Trace, capacity: int) -> npt.NDArray[np.int64]:
    """Return the ``capacity`` most requested items, hottest first, ties to the lower id."""
    return np.argsort(-train.counts(), kind="stable")[: max(capacity, 0)]


def fit() -> Stored:
    """Return what FAE stores beside the table: nothing."""
    return Stored.nothing()
