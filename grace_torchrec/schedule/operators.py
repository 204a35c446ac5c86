"""Operators: the nodes of a traced model, each with its views, and what orders them.

Flow: GraphModule + Touched of every node -> *operators* -> OpGraph.
A view stays with the operator after which it can be shown; one that takes two operators to show is an
operator itself.  What writes the memory of one operator in place follows all that read it, and is
followed by all that read it later; so does what writes an input.  A weight that is written is a
resource: all queries share it, so one stream orders them.
Shapes: n operators.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from torch import fx

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import Op, order_by_resource
from grace_torchrec.schedule.touched import Touched, is_view, target_name

GEMMS = frozenset(
    [
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "einsum",
        "scaled_dot_product_attention",
        "Linear",
        "Bilinear",
        "MultiheadAttention",
    ]
)
GATHERS = frozenset(
    ("embedding", "embedding_bag", "Embedding", "EmbeddingBag", "pooled_rows", "pooled_lookup")
)


def operators(
    gm: fx.GraphModule, touched: Mapping[str, Touched], names: Collection[str] | None = None
) -> tuple[Op, ...]:
    """Return the operators of a traced model in its order.

    Args:
        gm: The traced model.
        touched: What each node touches, by its name.
        names: Of the nodes that are operators, as decided before: all others are views, though they
            may copy on another batch.  Default: what ``touched`` shows.

    Raises:
        GraceError: a node that is to be a view writes, or follows two operators.
    """
    found = _Found(gm, names)
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            found.follows[node] = set()
            if node.op == "placeholder":
                found.inputs |= touched[node.name].shows
        else:
            found.add(node, touched[node.name])
    return order_by_resource(found.with_resources())


class _Found:
    """What is known of the nodes so far."""

    def __init__(self, gm: fx.GraphModule, names: Collection[str] | None) -> None:
        self.gm, self.names = gm, names
        self.ops: list[Op] = []
        self.uses_n: list[tuple[set[str], set[str]]] = []  # memory that each reads and writes
        self.before_n: list[int] = []  # those that each transitively needs, as bit sets
        self.root_n: list[int] = []  # the operator whose memory each writes in place
        self.follows: dict[fx.Node, set[int]] = {}  # operators after which a value is there
        self.maker: dict[str, int] = {}  # memory -> the operator that made it
        self.writer: dict[str, int] = {}  # memory -> the last one that wrote it in place
        self.readers: dict[str, list[int]] = {}
        self.inputs: set[str] = set()
        self.resources: set[str] = set()

    def add(self, node: fx.Node, touched: Touched) -> None:
        """Add a node to the operator it is a view of, or as an operator."""
        needs = set().union(*(self.follows[n] for n in node.all_input_nodes))
        for known in (self.maker, self.writer):
            needs |= {known[name] for name in touched.reads | touched.writes if name in known}
        needs = self._last_in_place(needs)
        last = self._last(needs)
        if self._is_shown_with(node, touched, last):
            self._attach(node, touched, last)
        else:
            self._operator(node, touched, needs)

    def _is_shown_with(self, node: fx.Node, touched: Touched, last: set[int]) -> bool:
        """Return whether a node is a view of the operator that it follows.

        Raises:
            GraceError: it was one, and cannot be.
        """
        can = not touched.writes and len(last) <= 1
        if self.names is None:
            return can and not touched.makes and bool(touched.shows or is_view(node))
        if node.name not in self.names and not can:
            raise GraceError(f"{node.name!r} was a view; it writes, or takes two operators to show")
        return node.name not in self.names

    def _attach(self, node: fx.Node, touched: Touched, last: set[int]) -> None:
        """Let a view follow one operator, or none where it shows an input."""
        self.follows[node] = last
        for place in last:
            self.ops[place] = replace(self.ops[place], nodes=(*self.ops[place].nodes, node.name))
            self.uses_n[place][0].update(touched.reads)
            for name in touched.reads:
                if self.maker.get(name) != self.root_n[place]:
                    self.readers.setdefault(name, []).append(place)
            self.maker.update(dict.fromkeys(touched.makes, place))  # a copy, where names are given

    def _operator(self, node: fx.Node, touched: Touched, needs: set[int]) -> None:
        """Add an operator: in place of another, or with memory of its own."""
        place, base = len(self.ops), -1
        makers = {self.maker.get(name, -1) for name in touched.writes}
        if len(touched.writes) == 1 and not touched.makes and -1 not in makers:
            base = self.root_n[makers.pop()]
        self.resources |= touched.writes - self.maker.keys() - self.inputs
        for name in touched.writes:
            needs = needs.union(self.readers.get(name, ()))
            self.writer[name] = place
        for name in touched.reads | touched.writes:
            self.readers.setdefault(name, []).append(place)
        self.maker.update(dict.fromkeys(touched.makes, place))
        op = _described(self.gm, node, tuple(sorted(needs)))
        self.ops.append(replace(op, in_place_of=base))
        self.uses_n.append((set(touched.reads), set(touched.writes | touched.makes)))
        self.root_n.append(place if base < 0 else base)
        self.before_n.append(sum(1 << need for need in needs) | self._all_before(needs))
        self.follows[node] = {place}

    def _last_in_place(self, needs: set[int]) -> set[int]:
        """Leave out operators whose memory a later one of them wrote in place."""
        last = {self.root_n[place]: place for place in sorted(needs)}
        return set(last.values())

    def _last(self, needs: set[int]) -> set[int]:
        """Leave out operators that another one of them follows anyway."""
        before = self._all_before(needs)
        return {place for place in needs if not before >> place & 1}

    def _all_before(self, places: Iterable[int]) -> int:
        """Return the operators that any of some transitively needs, as a bit set."""
        found = 0
        for place in places:
            found |= self.before_n[place]
        return found

    def with_resources(self) -> list[Op]:
        """Return the operators with the weights that one stream must order."""
        found = []
        for op, (reads, writes) in zip(self.ops, self.uses_n, strict=True):
            written = sorted(writes & self.resources)
            read = sorted(reads & self.resources - writes)
            op = replace(op, reads=_memory(read), writes=(*op.writes, *_memory(written)))
            found.append(op)
        return found


def _memory(names: Iterable[str]) -> tuple[str, ...]:
    """Return the resources that memory by name is."""
    return tuple(f"memory of {name}" for name in names)


def _described(gm: fx.GraphModule, node: fx.Node, needs: tuple[int, ...]) -> Op:
    """Describe one node."""
    if node.op == "call_module":
        module = gm.get_submodule(str(node.target))
        called, settings = type(module).__name__, repr(module).replace("\n", " ")
        resources = tuple(getattr(module, "mutable_resources", ()))
    else:
        called = settings = target_name(node)
        resources = ()
    kind = "elementwise"
    if called in GATHERS or "Embedding" in called:
        kind = "embedding"
    elif called in GEMMS:
        kind = "gemm"
    return Op(node.name, kind, needs, settings, (node.name,), (), resources)
