"""What a recorder is made with: one clear error where it is something else.

Flow: TraceRecorder -> *check_options*, before anything is made.
"""

from numbers import Integral, Real
from typing import Any

from grace_torchrec.arguments import expect, expect_number
from grace_torchrec.errors import GraceError


def check_options(
    *,
    max_overhead: float | None,
    share: float,
    half_lives: tuple[float | None, float | None],
    seed: int,
    **counts: int,
) -> None:
    """Refuse options that are out of range; names and meaning are those of the class.

    Args:
        max_overhead: Of the class.
        share: Of the class.
        half_lives: Of bags and of seconds.
        seed: Of the class.
        counts: What counts something, ``max_bag_ids`` and ``max_ids`` among them.

    Raises:
        GraceError: one of them is.
    """
    for name, count in counts.items():
        expect_number("recorder", name, count, 1, whole=True)
    if counts["max_bag_ids"] > counts["max_ids"]:
        raise GraceError(
            f"recorder: max_bag_ids is {counts['max_bag_ids']}, max_ids {counts['max_ids']}; "
            "give no more"
        )
    if not _is_above_0(share) or share > 1:
        raise GraceError(f"recorder: share is {share!r}; give a number above 0, up to 1")
    if max_overhead is not None and not (_is_above_0(max_overhead) and max_overhead < 1):
        raise GraceError(
            f"recorder: max_overhead is {max_overhead!r}; give a share above 0 and below 1, or None"
        )
    halves = [half for half in half_lives if half is not None]
    if len(halves) > 1 or not all(map(_is_above_0, halves)):
        raise GraceError("recorder: give one half-life, of bags or of seconds, above 0")
    expect("recorder", "seed", seed, Integral)


def _is_above_0(value: Any) -> bool:
    """Tell a number above 0 from anything else; one without end is one."""
    return isinstance(value, Real) and not isinstance(value, bool) and value > 0  # type: ignore[operator]
