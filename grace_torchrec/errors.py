"""Errors a user may meet. Every message says what is wrong, where, and what to do.

All derive from :class:`GraceError`, also those of memory models and placements, so one ``except``
catches the family; and from ``ValueError``, so callers that know nothing of this package catch them.
Where the stock collection or PyTorch would raise another built-in error, ours is that too.

The kernels raise their errors where nobody can catch them and raise others, inside compiled graphs and
in a backward, and may not import this package: they are told the classes to raise.
"""

from grace_kernels import errors as kernel_errors
from grace_sharding.errors import GraceError as GraceError


class PlanMismatch(GraceError):
    """A plan or profile does not belong to this model: names the table and both values."""


class NoPlan(GraceError):
    """No plan fits the given memories: names the table, what it needs and what there is."""


class StaleSums(GraceError):
    """Stored sums do not match the weights they were built from; rebuild them."""


class NotSupported(GraceError):
    """The request is understood and refused, with the reason."""


class NotInStock(NotSupported, NotImplementedError):
    """Refused as the stock collection refuses it, with a ``NotImplementedError``."""


class NoBackward(NotSupported, kernel_errors.NoBackward):
    """A gradient through stored sums was asked for; a ``NotImplementedError`` too."""


class NoCapture(NotSupported, kernel_errors.NoCapture):
    """A call that waits for the device was recorded in a CUDA graph; a ``RuntimeError`` too."""


class OutsideTable(GraceError, kernel_errors.OutsideTable):
    """An id is outside its table: names table, feature, sample, id, and the rows there are."""


class WrongBatch(GraceError, kernel_errors.WrongBatch):
    """The arrays of a batch do not belong together."""


kernel_errors.raised_as(
    {
        kernel_errors.NoBackward: NoBackward,
        kernel_errors.NoCapture: NoCapture,
        kernel_errors.OutsideTable: OutsideTable,
        kernel_errors.WrongBatch: WrongBatch,
    }
)
