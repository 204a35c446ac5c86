"""Tracing: a model becomes a GraphModule, and that an OpGraph.

Flow: model -> torch.fx -> *GraphModule* -> *OpGraph*.  Collections of embeddings with the names in
``LEAVES`` stay one node each; a module says ``mutable_resources`` (names) if a call changes them.
A view stays with the operator whose memory it shows; an in-place operator writes that memory, so
later readers need it and it needs the earlier ones.
"""

import hashlib
import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.schedule.op_graph import Op, OpGraph, order_by_resource

LEAVES = ("EmbeddingBagCollection", "EmbeddingCollection", "QuantEmbeddingBagCollection")
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


class ModelTracer(fx.Tracer):
    """A torch.fx tracer that keeps collections of embeddings whole.

    Args:
        leaves: Class names that stay one node, besides torch's own modules.
    """

    def __init__(self, leaves: Iterable[str] = LEAVES) -> None:
        super().__init__()
        self.leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a call of ``m`` stays one node."""
        if type(m).__name__ in self.leaves or hasattr(m, "mutable_resources"):
            return True
        return super().is_leaf_module(m, module_qualified_name)


def example_refused(name: str, error: Exception) -> GraceError:
    """Return the error of a model that fails on its example.

    Args:
        name: Of the model.
        error: What its code raised; torch.fx adds lines to the first.
    """
    told = str(error).partition("\n")[0]
    if not isinstance(error, GraceError):
        told = f"{type(error).__name__}: {told}"
    return GraceError(f"{name}: the model refuses its example batch: {told}")


def trace(model: nn.Module, leaves: Iterable[str] = LEAVES) -> fx.GraphModule:
    """Return ``model`` as a GraphModule; a GraphModule is returned as it is.

    Raises:
        NotSupported: torch.fx cannot trace it: names the file and line.
    """
    if isinstance(model, fx.GraphModule):
        return model
    try:
        graph = ModelTracer(leaves).trace(model)
    except Exception as error:  # whatever the model's own code raises on a proxy
        where = _place_in_model(error)
        raise NotSupported(
            f"{type(model).__name__}: cannot be traced at {where}: {error}; "
            "it keeps running on a single stream"
        ) from error
    return fx.GraphModule(model, graph, type(model).__name__)


def op_graph(gm: fx.GraphModule, name: str | None = None, aliases: Iterable[str] = ()) -> OpGraph:
    """Return the operators of a traced model.

    Args:
        gm: The traced model.
        name: Of the graph; default: that of its class.
        aliases: Nodes whose output lies in the memory of an input (see :func:`find_aliases`).
    """
    owner: dict[fx.Node, int | None] = {}  # the operator whose memory a node shows
    writer: dict[int, int] = {}  # operator -> the last one that wrote its memory in place
    readers: dict[int, list[int]] = {}
    ops: list[Op] = []
    aliases = frozenset(aliases)
    for node in gm.graph.nodes:
        given = [owner[n] for n in node.all_input_nodes]
        bases = list(dict.fromkeys(base for base in given if base is not None))
        if node.op in ("placeholder", "get_attr", "output"):
            owner[node] = None
            continue
        written = _written_inputs(gm, node)
        if not written and (is_view(node) or node.name in aliases) and len(bases) <= 1:
            owner[node] = bases[0] if bases else None
            if bases:  # it shows what was written last
                shown = writer.get(bases[0], bases[0])
                ops[shown] = replace(ops[shown], nodes=(*ops[shown].nodes, node.name))
            continue
        place = len(ops)
        needs = {writer.get(base, base) for base in bases}
        for base in {owner[n] for n in written} - {None}:
            assert base is not None
            needs.update(readers.get(base, ()))
            writer[base] = place
        for base in bases:
            readers.setdefault(base, []).append(place)
        kept = owner[written[0]] if written else None
        op = _operator(gm, node, tuple(sorted(needs - {place})))
        ops.append(op if kept is None else replace(op, in_place_of=kept))
        owner[node] = place if kept is None else kept
    return OpGraph(name or type(gm).__name__, order_by_resource(ops))


def find_aliases(gm: fx.GraphModule, example: tuple[Any, ...]) -> set[str]:
    """Run a model once; return the nodes that hand on the memory of an input.

    Args:
        gm: The traced model.
        example: Positional arguments of one batch.
    """
    run = _Storages(gm)
    with torch.inference_mode():
        run.run(*example)
    return {
        node.name
        for node, own in run.found.items()
        if node.op != "output" and own & set().union(*(run.found[n] for n in node.all_input_nodes))
    }


def code_hash(gm: fx.GraphModule) -> str:
    """Return a short sha256 of what a traced model computes: its nodes with all their arguments."""
    digest = hashlib.sha256()
    for node in gm.graph.nodes:
        called = node.target if isinstance(node.target, str) else target_name(node)
        digest.update(f"{node.op} {node.name} {called} {node.args} {node.kwargs}\n".encode())
    return digest.hexdigest()[:16]


class _Storages(fx.Interpreter):
    """Runs a graph and keeps the storages of every node's tensors alive and known."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.found: dict[fx.Node, set[int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        value = super().run_node(n)
        tensors = torch.utils._pytree.tree_leaves(value)
        self.found[n] = {
            t.untyped_storage().data_ptr() for t in tensors if isinstance(t, Tensor) and t.numel()
        }
        return value


def is_view(node: fx.Node) -> bool:
    """Return whether a node computes nothing: it shows other memory, or asks for a shape."""
    return node.op in ("call_function", "call_method") and target_name(node) in VIEWS


def target_name(node: fx.Node) -> str:
    """Return the plain name of what a function or method node calls."""
    target: Any = node.target
    name: str = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.partition(".")[0]


def _operator(gm: fx.GraphModule, node: fx.Node, needs: tuple[int, ...]) -> Op:
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


def _written_inputs(gm: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """Return the inputs that a node writes in place."""
    out = node.kwargs.get("out")
    written = [out] if isinstance(out, fx.Node) else []
    if node.op == "call_module":
        in_place = bool(getattr(gm.get_submodule(str(node.target)), "inplace", False))
    else:
        plain = target_name(node)
        in_place = plain.endswith("_") and not plain.endswith("__")
        in_place = in_place or plain in ("iadd", "isub", "imul", "itruediv", "setitem")
        in_place = in_place or bool(node.kwargs.get("inplace"))
    if in_place and node.args and isinstance(node.args[0], fx.Node):
        written.append(node.args[0])
    return written


def _place_in_model(error: BaseException) -> str:
    """Return ``file:line`` of the deepest frame that is neither torch's nor ours."""
    inside = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*inside, "<"))]
    found = own[-1] if own else frames[-1]
    return f"{found.filename}:{found.lineno}"
