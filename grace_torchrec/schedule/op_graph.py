"""OpGraph: the operators of a model and who needs whose output.

Flow: traced model -> *OpGraph* -> priorities, streams, Schedule.  Views are part of the operator
whose memory they show; inputs, weights and the output are no operators.  What an operator writes
besides its output (a cache, a weight under delta) is a resource: a name.
Source: RecOS, IJCAI'25, section 3.2 (a graph of operators); parallel share as in its Table 1.
Shapes: n operators, in an order in which every operator follows those it needs.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grace_torchrec.errors import GraceError

KINDS = ("embedding", "gemm", "elementwise", "other")


@dataclass(frozen=True)
class Op:
    """One operator.

    Attributes:
        name: Unique in its graph.
        kind: One of ``KINDS``.
        needs: Places of the operators whose output or effect it needs, ascending.
        target: What it calls, with its settings.
        nodes: Names of its graph nodes: the computation first, then its views.
        reads: Resources it reads (weights under delta).
        writes: Resources it writes (mutable caches).
        in_place_of: Place of the operator whose output it overwrites; -1 if it has its own.
    """

    name: str
    kind: str
    needs: tuple[int, ...]
    target: str = ""
    nodes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    in_place_of: int = -1


@dataclass(frozen=True)
class OpGraph:
    """Operators in an order that respects their needs.

    Raises:
        GraceError: an operator needs one that does not come before it, or names repeat.
    """

    name: str
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        """Check order and names."""
        if len({op.name for op in self.ops}) != len(self.ops):
            raise GraceError(f"op graph {self.name!r}: two operators share a name; name each once")
        for place, op in enumerate(self.ops):
            wrong = [need for need in op.needs if not 0 <= need < place]
            if wrong or list(op.needs) != sorted(set(op.needs)):
                raise GraceError(
                    f"op graph {self.name!r}: {op.name!r} at {place} needs {list(op.needs)}; "
                    "list operators after those they need"
                )

    @classmethod
    def from_needs(cls, needs: Sequence[Iterable[int]], name: str = "graph") -> "OpGraph":
        """Return a graph of plain operators ``v1, v2, ...`` from the places each needs.

        >>> OpGraph.from_needs([[], [0], [0], [1, 2]]).parallel_share()
        0.5
        """
        ops = tuple(
            Op(f"v{place + 1}", "other", tuple(sorted(set(needed))))
            for place, needed in enumerate(needs)
        )
        return cls(name, ops)

    @property
    def needs(self) -> tuple[tuple[int, ...], ...]:
        """Places that each operator needs."""
        return tuple(op.needs for op in self.ops)

    def needed_by(self) -> list[list[int]]:
        """Return the places that need each operator, ascending."""
        users: list[list[int]] = [[] for _ in self.ops]
        for place, op in enumerate(self.ops):
            for need in op.needs:
                users[need].append(place)
        return users

    def places(self) -> dict[str, int]:
        """Return the place of each operator by name."""
        return {op.name: place for place, op in enumerate(self.ops)}

    def owners(self) -> list[int]:
        """Return, for each operator, the one whose memory its output lies in."""
        owner = list(range(len(self.ops)))
        for place, op in enumerate(self.ops):
            if op.in_place_of >= 0:
                owner[place] = owner[op.in_place_of]
        return owner

    def results(self) -> list[int]:
        """Return the operators whose memory holds what no other operator needs, ascending."""
        owner, used = self.owners(), {need for op in self.ops for need in op.needs}
        return sorted({owner[place] for place in range(len(self.ops)) if place not in used})

    def ancestors(self) -> list[int]:
        """Return the operators that each one transitively needs, as bit sets."""
        sets: list[int] = []
        for op in self.ops:
            found = 0
            for need in op.needs:
                found |= sets[need] | 1 << need
            sets.append(found)
        return sets

    def parallel_share(self) -> float:
        """Return the share of operators that can run beside another one (Table 1's second column)."""
        before = self.ancestors()
        after = [0] * len(before)
        for place in reversed(range(len(before))):
            for need in self.ops[place].needs:
                after[need] |= after[place] | 1 << place
        bound = [
            a.bit_count() + b.bit_count() + 1 == len(before)
            for a, b in zip(before, after, strict=True)
        ]
        return 1 - sum(bound) / len(bound) if bound else 0.0

    def critical_path(self, weights: Sequence[float]) -> float:
        """Return the heaviest path, each operator weighing ``weights``."""
        finish: list[float] = []
        for op, weight in zip(self.ops, weights, strict=True):
            finish.append(weight + max((finish[need] for need in op.needs), default=0.0))
        return max(finish, default=0.0)

    def fingerprint(self) -> str:
        """Return a short sha256 over everything but the names of graph and nodes."""
        digest = hashlib.sha256()
        for op in self.ops:
            digest.update(repr((op.kind, op.needs, op.target, op.reads, op.writes)).encode())
            if op.in_place_of >= 0:
                digest.update(f"in place of {op.in_place_of}".encode())
        return digest.hexdigest()[:16]

    def with_resources(
        self, reads: Mapping[str, Iterable[str]], writes: Mapping[str, Iterable[str]]
    ) -> "OpGraph":
        """Return the graph with the named operators' resources added.

        Args:
            reads: Operator -> resources it reads.
            writes: Operator -> resources it writes.

        Raises:
            GraceError: no operator has a given name.
        """
        unknown = sorted((set(reads) | set(writes)) - set(self.places()))
        if unknown:
            raise GraceError(
                f"op graph {self.name!r}: no operator {unknown[0]!r}; it has {len(self.ops)}, "
                "see their names with 'grace-torchrec schedule MODEL'"
            )
        ops = (
            replace(
                op,
                reads=tuple(dict.fromkeys((*op.reads, *reads.get(op.name, ())))),
                writes=tuple(dict.fromkeys((*op.writes, *writes.get(op.name, ())))),
            )
            for op in self.ops
        )
        return OpGraph(self.name, order_by_resource(ops))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that :meth:`from_json` reads."""
        return {"name": self.name, "ops": [vars(op) for op in self.ops]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "OpGraph":
        """Read what :meth:`to_json` wrote.

        Raises:
            GraceError: a field is missing or the order is wrong.
        """
        try:
            ops = tuple(_op_from_json(op) for op in document["ops"])
            return cls(str(document["name"]), ops)
        except (KeyError, TypeError, AttributeError) as error:
            raise GraceError(f"op graph: not readable ({error}); write the file again") from error


def _op_from_json(values: Mapping[str, Any]) -> Op:
    """Return an operator; JSON has lists where it has tuples."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return Op(**fields)


def order_by_resource(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the operators with needs added so that each resource is used in the given order.

    A write follows the reads and the write before it; a read follows the write before it.
    """
    last_write: dict[str, int] = {}
    read_since: dict[str, list[int]] = {}
    ordered = []
    for place, op in enumerate(ops):
        needs = set(op.needs)
        for name in (*op.reads, *op.writes):
            if name in last_write:
                needs.add(last_write[name])
        for name in op.writes:
            needs.update(read_since.get(name, ()))
            last_write[name], read_since[name] = place, []
        for name in set(op.reads) - set(op.writes):
            read_since.setdefault(name, []).append(place)
        ordered.append(replace(op, needs=tuple(sorted(needs))))
    return tuple(ordered)
