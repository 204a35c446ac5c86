"""RewrittenBatch: a batch whose bags were turned into rows before the model asks for them.

Flow: loader -> ``grace.rewrite`` -> *RewrittenBatch* -> GraceEmbeddingBagCollection.forward.
It holds the original bags, and for each swapped module the rows its bags read.  The rows name
plain and stored rows of a table, not places in a memory: they outlive moves, loads and rebuilds,
but belong to one set of codes, whose stamp they carry.
Shapes: F rewritten features of a module, B bags of each, P rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from grace_torchrec.errors import PlanMismatch


@dataclass(frozen=True, eq=False)
class RewrittenRows:
    """The rows that one module reads for a batch.

    Attributes:
        rows: int64 ``[P]``: below N a plain row of the feature's table, ``N + j`` stored row ``j``.
        offsets: int64 ``[F * B + 1]``.
        weights: float32 ``[P]``, or None.
        given_lengths: int64 ``[F, B]``, lengths of the original bags: MEAN divides by them.
        reads: int64 ``[F, 2]``: ids asked for, rows read.
        stamp: What codes the bags were rewritten with.
    """

    rows: Tensor
    offsets: Tensor
    weights: Tensor | None
    given_lengths: Tensor
    reads: Tensor
    stamp: str

    def map(self, change: Callable[[Tensor], Tensor]) -> "RewrittenRows":
        """Return the same with every tensor changed."""
        return RewrittenRows(
            change(self.rows),
            change(self.offsets),
            None if self.weights is None else change(self.weights),
            change(self.given_lengths),
            change(self.reads),
            self.stamp,
        )


@dataclass(frozen=True, eq=False)
class RewrittenBatch(Pipelineable):
    """A batch of bags, and the rows they read.

    What a KeyedJaggedTensor has (``keys()``, ``stride()``, ``to_dict()`` ..) is that of ``bags``,
    so collections that were left stock, and code around them, take it like the original.

    Attributes:
        bags: The original bags.
        modules: Dotted path of a swapped module (when ``accelerate_`` made it) -> its rows.
    """

    bags: KeyedJaggedTensor
    modules: Mapping[str, RewrittenRows]

    def rows_for(self, path: str, stamp: str) -> RewrittenRows:
        """Return the rows for a module.

        Args:
            path: Dotted path of the module.
            stamp: Stamp of its codes.

        Raises:
            PlanMismatch: the batch was rewritten for another model or plan.
        """
        found = self.modules.get(path)
        again = "rewrite it with grace_torchrec.rewrite(batches, model)"
        if found is None:
            raise PlanMismatch(
                f"module {path!r}: the batch was rewritten for {sorted(self.modules)}; {again}"
            )
        if found.stamp != stamp:
            raise PlanMismatch(
                f"module {path!r}: the batch was rewritten with codes {found.stamp}, "
                f"the module has {stamp}; {again}"
            )
        return found

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "RewrittenBatch":
        """Return the batch with every tensor on ``device``."""
        return self._map(
            self.bags.to(device=torch.device(device), non_blocking=non_blocking),
            lambda tensor: tensor.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> "RewrittenBatch":
        """Return the batch in page-locked memory, as DataLoaders ask for it."""
        return self._map(self.bags.pin_memory(), lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory of every tensor until ``stream`` has used it."""

        def record(tensor: Tensor) -> Tensor:
            """Record one tensor."""
            tensor.record_stream(stream)
            return tensor

        self._map(self.bags, record)
        self.bags.record_stream(stream)

    def _map(self, bags: KeyedJaggedTensor, change: Callable[[Tensor], Tensor]) -> "RewrittenBatch":
        """Return the batch over ``bags`` with every tensor of the rows changed."""
        modules = {path: part.map(change) for path, part in self.modules.items()}
        return replace(self, bags=bags, modules=modules)

    def __getattr__(self, name: str) -> Any:
        """Answer as the original bags do.

        Raises:
            AttributeError: bags have no such attribute either.
        """
        if name.startswith("__") or name in ("bags", "modules"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.bags, name)
