"""Covering: whether the offsets of a CSR cover what they cut, asked before anything is made of them.

Flow: StoredSums, its codes and their arrays -> *check_covers*.
Shapes: P parts, P1 = P + 1.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError


def check_covers(what: str, offsets_P1: npt.NDArray[Any], of: str, size: int) -> None:
    """Refuse offsets that do not start at 0, fall, or end elsewhere than at ``size``.

    Args:
        what: Name of the offsets, for the message.
        offsets_P1: Part ``p`` is ``offsets_P1[p]:offsets_P1[p + 1]``.
        of: Name of what they cut.
        size: How many of these there are.

    Raises:
        GraceError: the message names both.
    """
    if (
        offsets_P1.ndim != 1
        or not offsets_P1.size
        or offsets_P1[0] != 0
        or offsets_P1[-1] != size
        or (np.diff(offsets_P1) < 0).any()
    ):
        raise GraceError(f"stored sums: {what} does not cover its {of}")
