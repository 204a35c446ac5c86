"""Errors a user may meet. Every message says what is wrong, where, and what to do.

All derive from :class:`GraceError`, also those of memory models and placements, so one ``except``
catches the family; and from ``ValueError``, so callers that know nothing of this package catch them.
"""

from grace_sharding.errors import GraceError as GraceError


class PlanMismatch(GraceError):
    """A plan or profile does not belong to this model: names the table and both values."""


class NoPlan(GraceError):
    """No plan fits the given memories: names the table, what it needs and what there is."""


class StaleSums(GraceError):
    """Stored sums do not match the weights they were built from; rebuild them."""


class NotSupported(GraceError):
    """The request is understood and refused, with the reason."""
