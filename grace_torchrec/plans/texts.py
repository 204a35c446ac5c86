"""Texts of a plan file: what they may be before anybody shows them.

Flow: plan.json -> *check_texts* -> parsing.  A name or a reason goes to terminals, logs and pages, so
it holds no line break and no escape; and an error that quotes a value quotes the beginning of it.
"""

from collections.abc import Iterable
from typing import Any

from grace_torchrec.errors import GraceError

# Why a table is left stock where its profile is to blame: sums may pay, with another profile.
NOT_HELD = "the profile does not hold this table"
NO_BAGS = "the profile holds no bags of it"
NO_WEIGHTS = "its bags were recorded without weights"
MOST_LETTERS = 2_000
QUOTED = 300


def check_texts(document: Any, where: str) -> None:
    """Refuse a JSON document with a key or a text that cannot be shown on one line.

    Args:
        document: JSON values.
        where: Place for messages.

    Raises:
        GraceError: a text holds letters that are not printed, or too many.
    """
    left = [document]
    while left:  # a document may be as deep as it likes
        value = left.pop()
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and not is_shown(value):
            raise GraceError(
                f"{where}: the text {quoted(repr(value))} has letters that are not printed, or more "
                f"than {MOST_LETTERS:,}; make the plan again"
            )


def is_shown(text: str) -> bool:
    """Tell a text that may go to a terminal."""
    return len(text) <= MOST_LETTERS and text.isprintable()


def quoted(text: str) -> str:
    """Return the beginning of a long text.

    >>> quoted("a" * 1000)[-5:]
    'aa...'
    """
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def names(found: Iterable[str]) -> str:
    """Return names of a stranger for a message: in order, only some, each a short one.

    >>> names({"b", "a"})
    'a, b'
    """
    shown = sorted(quoted(name if name.isprintable() else repr(name)) for name in found)
    more = [f"and {len(shown) - 8} more"] if len(shown) > 8 else []
    return ", ".join([*shown[:8], *more])
