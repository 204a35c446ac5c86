"""Touched: whose memory every node of a traced model shows, reads and writes.

Flow: GraphModule + example -> one run -> *Touched* of every node -> operators, and the check of what
was lowered.  Memory has the name of what first showed it: an input, a weight, a node.  Writes are
seen by PyTorch's version counters, and by the names of operators that write in place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from grace_torchrec.schedule.copied import tensors_in

Names = frozenset[str]
IN_PLACE = frozenset(
    ["setitem"]
    + ["i" + name for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")]
    + ["i" + name for name in ("and", "or", "xor", "lshift", "rshift")]
)
VIEWS = frozenset(
    [
        "getitem",
        "getattr",
        "view",
        "unsqueeze",
        "squeeze",
        "transpose",
        "permute",
        "expand",
        "flatten",
        "reshape",
        "t",
        "contiguous",
        "to",
        "float",
        "detach",
        "Identity",
        "size",
        "dim",
        "narrow",
        "split",
        "unbind",
        "chunk",
        "to_dict",
        "values",
        "keys",
        "offsets",
        "lengths",
        "stride",
    ]
)
SHORT_LIST = 1000  # longer ones of a module are not searched for tensors


@dataclass(frozen=True)
class Touched:
    """Memory by name.

    Attributes:
        shows: What the node's value lies in.
        reads: What it is given; a module's weights too.
        writes: What it changes in place.
    """

    shows: Names
    reads: Names
    writes: Names

    @property
    def makes(self) -> Names:
        """What no node showed before: memory of its own."""
        return self.shows - self.reads - self.writes


def touched(gm: fx.GraphModule, example: tuple[Any, ...]) -> dict[str, Touched]:
    """Run a traced model once; return what each node touches.

    Args:
        gm: The traced model.
        example: Positional arguments of one batch; an in-place model changes them.
    """
    run = _Run(gm)
    with torch.inference_mode(False), torch.no_grad():  # inference tensors have no version
        run.run(*example)
    placeholders = gm.graph.find_nodes(op="placeholder")
    types = {node.name: {each.dtype for each in run.tensors[node]} for node in placeholders}
    return _inputs_as_one(run.found, types)


def assumed(gm: fx.GraphModule) -> dict[str, Touched]:
    """Return what each node touches by its name alone: a view shows all that it is given.

    Args:
        gm: The traced model.
    """
    found: dict[str, Touched] = {}
    for node in gm.graph.nodes:
        reads = _shown(found, node.all_input_nodes)
        writes = _shown(found, named_writes(gm, node))
        shows = writes or (reads if is_view(node) else frozenset([own_name(node)]))
        found[node.name] = Touched(shows, reads, writes)
    return found


def is_view(node: fx.Node) -> bool:
    """Return whether a node computes nothing: it shows other memory, or asks for a shape."""
    return node.op in ("call_function", "call_method") and target_name(node) in VIEWS


def target_name(node: fx.Node) -> str:
    """Return the plain name of what a function or method node calls."""
    target: Any = node.target
    name: str = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.partition(".")[0]


def own_name(node: fx.Node) -> str:
    """Return the name of memory that a node is the first to show."""
    return str(node.target) if node.op == "get_attr" else node.name


def named_writes(gm: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """Return the inputs that a node writes in place by what it is called.

    Args:
        gm: The traced model.
        node: One of its nodes.
    """
    written: list[fx.Node] = []
    fx.node.map_arg(node.kwargs.get("out"), written.append)
    if node.op == "call_module":
        in_place = bool(getattr(gm.get_submodule(str(node.target)), "inplace", False))
    elif node.op in ("call_function", "call_method"):
        plain = target_name(node)
        in_place = plain.endswith("_") and not plain.endswith("__")
        in_place = in_place or plain in IN_PLACE or bool(node.kwargs.get("inplace"))
    else:
        in_place = False
    if in_place and node.args:
        fx.node.map_arg(node.args[0], written.append)
    return written


def _inputs_as_one(
    found: dict[str, Touched], types: Mapping[str, set[torch.dtype]]
) -> dict[str, Touched]:
    """Give an input that is written one name with all others of its type: one tensor may be passed as two.

    Args:
        found: What each node touches.
        types: Input -> types of its tensors.
    """
    writes = frozenset().union(*(each.writes for each in found.values()))
    written = {
        kind for name, kinds in types.items() if found[name].shows & writes for kind in kinds
    }
    alike = [found[name].shows for name, kinds in types.items() if kinds & written]
    inputs: Names = frozenset().union(*alike)
    if not inputs:
        return found
    one = frozenset([min(inputs)])

    def renamed(names: Names) -> Names:
        """Return names of memory after that."""
        return names - inputs | one if names & inputs else names

    return {
        name: Touched(renamed(each.shows), renamed(each.reads), renamed(each.writes))
        for name, each in found.items()
    }


def _shown(found: Mapping[str, Touched], nodes: Iterable[fx.Node]) -> Names:
    """Return the memory that some nodes show."""
    return frozenset().union(*(found[node.name].shows for node in nodes))


class _Run(fx.Interpreter):
    """Runs a graph, keeps all values alive, so that no address comes twice, and names memory."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.gm = gm
        self.found: dict[str, Touched] = {}
        self.name_of: dict[int, str] = {}  # address -> memory
        self.tensors: dict[fx.Node, list[Tensor]] = {}
        modules = gm.named_modules(remove_duplicate=False)
        self.inside = {path: _own_tensors(module) for path, module in modules}
        for path, own in self.inside.items():
            for name, tensor in own.items():
                self._name(tensor, f"{path}.{name}" if path else name)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and note what it touches."""
        given = [tensor for node in n.all_input_nodes for tensor in self.tensors[node]]
        if n.op == "call_module":
            given += self._tensors_below(str(n.target))
        before = [_version(tensor) for tensor in given]
        value = super().run_node(n)
        pairs = zip(given, before, strict=True)
        changed = [tensor for tensor, version in pairs if _version(tensor) != version]
        self.tensors[n] = list(tensors_in(value))
        reads = self._names(given) | {
            self.name_of[address] for address in map(_address, self.tensors[n]) if address in self.name_of
        }  # fmt: skip
        for tensor in self.tensors[n]:
            self._name(tensor, own_name(n))
        writes = self._names(changed) | _shown(self.found, named_writes(self.gm, n))
        self.found[n.name] = Touched(self._names(self.tensors[n]), reads, writes)
        return value

    def _tensors_below(self, path: str) -> list[Tensor]:
        """Return the tensors of a module and of those inside it."""
        return [
            tensor
            for inside, own in self.inside.items()
            if inside == path or inside.startswith(path + ".")
            for tensor in own.values()
        ]

    def _name(self, tensor: Tensor, name: str) -> None:
        """Name the memory of a tensor, unless it has a name."""
        address = _address(tensor)
        if address:
            self.name_of.setdefault(address, name)

    def _names(self, tensors: Iterable[Tensor]) -> Names:
        """Return the names of the memory of tensors."""
        return frozenset(self.name_of[at] for at in map(_address, tensors) if at)


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of one module: parameters, buffers, attributes, short lists of them."""
    own: dict[str, Tensor] = {}
    for name, value in {**vars(module), **module._parameters, **module._buffers}.items():
        if isinstance(value, Tensor):
            own[name] = value
        elif isinstance(value, list | tuple) and len(value) <= SHORT_LIST:
            tensors = (inside for inside in value if isinstance(inside, Tensor))
            own |= {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}
    return own


def _address(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins; 0 if it has none that can be shared."""
    if not tensor.numel() or tensor.layout != torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()


def _version(tensor: Tensor) -> int:
    """Return how often a tensor's memory was written; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version
