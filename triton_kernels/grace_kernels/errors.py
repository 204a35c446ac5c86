"""What the ops refuse: classes of this package, which a package above replaces by its own.

Flow: ops, GPU code and autograd raise *refusal*; grace_torchrec.errors tells *raised_as* at its import
which of its classes stand for these.  An op also runs where nobody can catch its error and raise
another, inside a compiled graph or a backward, so the class must be right where it is raised; and
nothing above this package may be imported here.
"""

from collections.abc import Mapping

ALLOW_BAD_IDS = (
    "plan with PlanOptions(bad_ids='drop' or 'zero_row')"  # the command line has its own words
)


class OutsideTable(ValueError):
    """An id, or a row of a rewritten batch, is outside its table."""


class WrongBatch(ValueError):
    """The arrays of a batch do not belong together."""


class NoCapture(RuntimeError):
    """A call that waits for the device was recorded in a CUDA graph."""


class NoBackward(NotImplementedError):
    """A gradient was asked for: lookups are inference only."""


_classes: dict[type[Exception], type[Exception]] = {}


def raised_as(classes: Mapping[type[Exception], type[Exception]]) -> None:
    """Raise other classes from now on, in the whole process.

    Args:
        classes: Class of this module -> what stands for it.

    Raises:
        TypeError: the one does not derive from the other, so that callers of this package alone
            would miss it.
    """
    for own, other in classes.items():
        if not issubclass(other, own):
            raise TypeError(f"{other.__name__} does not derive from {own.__name__}; let it")
    _classes.update(classes)


def refusal(kind: type[Exception], message: str) -> Exception:
    """Return the error to raise.

    Args:
        kind: Class of this module.
        message: What is wrong, where, and what to do.
    """
    return _classes.get(kind, kind)(message)
