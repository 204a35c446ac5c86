"""Tracing: a model becomes a GraphModule, and that an OpGraph.

Flow: model -> torch.fx -> *GraphModule* -> *OpGraph*.  Collections of embeddings with the names in
``LEAVES`` stay one node each; a module says ``mutable_resources`` (names) if a call changes them.
"""

import hashlib
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from torch import fx, nn

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.operators import operators
from grace_torchrec.schedule.touched import Touched, assumed, target_name

LEAVES = ("EmbeddingBagCollection", "EmbeddingCollection", "QuantEmbeddingBagCollection")


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


def op_graph(
    gm: fx.GraphModule,
    name: str | None = None,
    touched: Mapping[str, Touched] | None = None,
    names: Collection[str] | None = None,
) -> OpGraph:
    """Return the operators of a traced model.

    Args:
        gm: The traced model.
        name: Of the graph; default: that of its class.
        touched: What each node reads and writes, from a run; default: what its name says.
        names: Of the nodes that are operators; default: what ``touched`` shows.

    Raises:
        GraceError: another node than ``names`` can be no view.
    """
    found = operators(gm, assumed(gm) if touched is None else touched, names)
    return OpGraph(name or type(gm).__name__, found)


def code_hash(gm: fx.GraphModule) -> str:
    """Return a short sha256 of what a traced model computes: its nodes with all their arguments."""
    digest = hashlib.sha256()
    for node in gm.graph.nodes:
        called = node.target if isinstance(node.target, str) else target_name(node)
        digest.update(f"{node.op} {node.name} {called} {node.args} {node.kwargs}\n".encode())
    return digest.hexdigest()[:16]


def _place_in_model(error: BaseException) -> str:
    """Return ``file:line`` of the deepest frame that is neither torch's nor ours."""
    inside = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*inside, "<"))]
    found = own[-1] if own else frames[-1]
    return f"{found.filename}:{found.lineno}"
