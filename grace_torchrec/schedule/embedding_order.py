"""Embedding order: where a new query starts in the round of embedding operators.

Flow: the previous query's state -> *start index* -> order of the new query's embeddings.
Source: RecOS, IJCAI'25, section 3.4: round-robin with a unique start for each query.  The equation
is not in the text we hold, only its terms are: every rule here is derived and named.  In the
simulator no rule is best everywhere, for stream choice already avoids most conflicts.
"""

from collections.abc import Callable

from grace_torchrec.errors import GraceError

# (index of the last launched embedding, start of the previous query, number of embeddings) -> start
StartRule = Callable[[int, int, int], int]


def half_round(now: int, start: int, count: int) -> int:
    """Start half a round away from the previous query."""
    return (now + count // 2) % count


def next_one(now: int, start: int, count: int) -> int:
    """Start right after the previous query's last one: it then chases the same operators."""
    return (now + 1) % count


def sum_of_both(now: int, start: int, count: int) -> int:
    """Start at start + now + 1 of the previous query."""
    return (start + now + 1) % count


def difference(now: int, start: int, count: int) -> int:
    """Start at what the previous query has launched."""
    return (now - start) % count


def first(now: int, start: int, count: int) -> int:
    """Start at the first embedding always."""
    return 0


START_RULES: dict[str, StartRule] = {  # in the order of Calibration.start_rule
    "half_round": half_round,
    "next_one": next_one,
    "sum_of_both": sum_of_both,
    "difference": difference,
    "first": first,
}


class EmbeddingOrder:
    """Gives each query its own round.

    Args:
        count: Embedding operators of the model.
        rule: One of ``START_RULES``.

    Raises:
        GraceError: the rule is unknown or there is no embedding.
    """

    def __init__(self, count: int, rule: str = "half_round") -> None:
        if rule not in START_RULES or count < 1:
            raise GraceError(
                f"embedding order: {count} embeddings, rule {rule!r}; give one or more and one of "
                f"{', '.join(START_RULES)}"
            )
        self.count, self.rule = count, START_RULES[rule]
        self.now = self.start = 0

    def next_start(self) -> int:
        """Return where the round of a new query starts."""
        self.start = self.rule(self.now, self.start, self.count)
        self.now = self.start
        return self.start

    def begin_query(self) -> list[int]:
        """Return the order of a new query's embeddings."""
        self.next_start()
        return [(self.start + place) % self.count for place in range(self.count)]

    def launched(self, embedding: int) -> None:
        """Note the last launched embedding."""
        self.now = embedding
