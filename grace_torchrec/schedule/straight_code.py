"""Straight code: the Python that a lowered graph becomes pays little for each operator.

Flow: lowered graph -> *StraightCode* -> forward of the GraphModule; its segments -> *DirectCalls*
-> functions.  What torch.fx would write as a call of our function that calls the module ``streams``
that calls its backend is one call of a local here, and a module inside modules is found in their
dictionaries instead of through ``nn.Module.__getattr__`` at every level.  The caller's stream comes
back after an error too.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx, nn
from torch.fx.graph import CodeGen

COUNTER = "# COUNTER: "  # torch.fx writes it, with the number of the node, before each node's line


class DirectCalls(CodeGen):
    """Generates code that finds modules inside modules in their dictionaries."""

    def _gen_python_code(self, nodes: Any, root_module: str, namespace: Any, **options: Any) -> Any:
        """Generate with lines of our own for calls of modules and what else :meth:`_line` knows."""
        nodes = list(nodes)
        local = self._locals(namespace)
        before = self._body_transformer

        def rewritten(body: list[str]) -> list[str]:
            """Rewrite the line that follows each counter."""
            found, node = [], None
            for line in body:
                if line.startswith(COUNTER):
                    node = nodes[int(line.removeprefix(COUNTER))]
                elif node is not None:
                    line, node = self._line(node, line, root_module, local), None
                found.append(line)
            return found if before is None else before(found)

        self._body_transformer = rewritten
        try:
            return super()._gen_python_code(nodes, root_module, namespace, **options)
        finally:
            self._body_transformer = before

    def _locals(self, namespace: Any) -> dict[str, str]:
        """Return names that lines use, by what they stand for."""
        return {}

    def _line(self, node: fx.Node, line: str, root: str, local: Mapping[str, str]) -> str:
        """Return what stands for a node; a line that looks otherwise than expected stays."""
        if node.op == "call_module":
            plain, direct = _paths(root, str(node.target))
            head, equals, call = line.partition(" = ")
            if call.startswith(f"{plain}("):
                return head + equals + direct + call.removeprefix(plain)
        return line


class StraightCode(DirectCalls):
    """Generates the forward of a lowered graph.

    Args:
        streams: Name of the module inside that carries the calls out.
        begin: The function that begins a query.
        steering: Our functions whose nodes are calls of a method of ``streams``, and its name.
        silent: Our functions whose nodes do nothing but keep values until then.
    """

    def __init__(
        self,
        streams: str,
        begin: Callable[..., Any],
        steering: Mapping[Callable[..., Any], str],
        silent: Callable[..., Any],
    ) -> None:
        super().__init__()
        self.streams, self.begin, self.steering, self.silent = streams, begin, steering, silent

    def _locals(self, namespace: Any) -> dict[str, str]:
        """Return a name for each method of ``streams``."""
        return {name: namespace.create_name(name, None) for name in self.steering.values()}

    def _line(self, node: fx.Node, line: str, root: str, local: Mapping[str, str]) -> str:
        """Return what stands for one of our nodes too."""
        if node.target is self.begin:
            bound = "; ".join(f"{own} = {node.args[0]}.{name}" for name, own in local.items())
            return f"{bound}; {node.args[0]}.begin()"
        if node.target in self.steering:
            given = ", ".join(map(str, node.args[1:]))
            return f"{local[self.steering[node.target]]}({given})"  # type: ignore[index]
        return "pass" if node.target is self.silent else super()._line(node, line, root, local)

    def gen_fn_def(self, *args: Any, **kwargs: Any) -> str:
        """Return the head of the function, decorated."""
        return "@giving_back\n" + str(super().gen_fn_def(*args, **kwargs))

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Name the decorator."""
        return [("giving_back", functools.partial(giving_back, streams=self.streams))]


def giving_back(forward: Callable[..., Any], streams: str) -> Callable[..., Any]:
    """Return a forward after which the caller's stream is current again."""

    @functools.wraps(forward)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run; a module hook would cost as much as ten operators' calls."""
        try:
            return forward(self, *args, **kwargs)
        finally:
            self._modules[streams].end()  # type: ignore[union-attr, operator]

    return run


def _paths(root: str, target: str) -> tuple[str, str]:
    """Return how torch.fx writes a module inside modules, and how it is found at once.

    >>> _paths("self", "layers.0")
    ('getattr(self.layers, "0")', "self._modules['layers']._modules['0']")
    """
    plain = direct = root
    for name in target.split("."):
        plain = f"{plain}.{name}" if name.isidentifier() else f'getattr({plain}, "{name}")'
        direct = f"{direct}._modules[{name!r}]"
    return plain, direct
