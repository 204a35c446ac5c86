"""The base of all errors a user may meet, in the lowest layer that raises one.

``grace_torchrec.errors`` names it for users; it stands here because machines and placements are values
of this layer, and one ``except`` shall catch what they say too.
"""


class GraceError(ValueError):
    """Base of all errors of these packages: one line says what is wrong, where, and what to do."""
