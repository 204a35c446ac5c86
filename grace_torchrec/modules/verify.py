"""Proof of a swap: the same batches through the swapped module and through its own originals.

Flow: swapped model + batches -> *verify* -> one value that says equal or not, table by table.
The stock answer comes from a stock EmbeddingBagCollection over the very Parameters kept inside.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_kernels.cpu import rewrite_counted
from grace_torchrec.errors import GraceError
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.rewritten_batch import RewrittenBatch

MAX_RELATIVE_ERROR = 1e-5  # float32 sums in another order; half rows are rounded once more
MAX_RELATIVE_ERROR_HALF = 2e-3
NO_CODE = np.zeros(0, np.int32)


@dataclass(frozen=True)
class TableCheck:
    """What was compared for one table.

    Attributes:
        table: Dotted path of the table.
        ids: Ids asked for.
        rows_read: Rows that were read for them.
        max_abs_error: Largest absolute difference of any pooled value.
        max_rel_error: The same, over the sum of absolute values behind the pooled value.
        stale: Why its sums do not match its rows, None if they all do.
        equal: Whether all is within rounding.
    """

    table: str
    ids: int
    rows_read: int
    max_abs_error: float
    max_rel_error: float
    stale: str | None
    equal: bool

    @property
    def cut(self) -> float:
        """Share of row reads that the sums saved."""
        return 1 - self.rows_read / self.ids if self.ids else 0.0


@dataclass(frozen=True)
class Verified:
    """The result of :func:`verify`."""

    tables: tuple[TableCheck, ...]
    batches: int

    @property
    def equal(self) -> bool:
        """Whether every table is equal within rounding and none is stale."""
        return all(table.equal for table in self.tables)

    @property
    def max_abs_error(self) -> float:
        """Largest absolute difference of any table."""
        return max((table.max_abs_error for table in self.tables), default=0.0)

    @property
    def max_rel_error(self) -> float:
        """Largest relative difference of any table."""
        return max((table.max_rel_error for table in self.tables), default=0.0)


def verify(model: nn.Module, batches: Iterable[Any]) -> Verified:
    """Compare with the originals; arguments and errors: ``grace_torchrec.api``."""
    found = [
        (path, module) for path, module in model.named_modules()
        if isinstance(module, GraceEmbeddingBagCollection)
    ]  # fmt: skip
    if not found:
        raise GraceError("model holds no swapped module; call accelerate_ first")
    stale = {path: module.stale_tables() for path, module in found}
    comparisons = {path: _Comparison(module) for path, module in found}
    count = 0 if any(stale.values()) else _run(model, batches, found, comparisons)
    checks = [check for path, _ in found for check in comparisons[path].checks(path, stale[path])]
    return Verified(tuple(checks), count)


def _run(
    model: nn.Module,
    batches: Iterable[Any],
    found: list[tuple[str, GraceEmbeddingBagCollection]],
    comparisons: dict[str, "_Comparison"],
) -> int:
    """Run the model with every comparison hooked in; return the number of batches."""
    count = 0
    with ExitStack() as stack:
        for path, module in found:
            hook = module.register_forward_hook(comparisons[path], with_kwargs=True)
            stack.callback(hook.remove)
            comparisons[path].reads = stack.enter_context(module.counting_reads())
        for batch in batches:
            with torch.no_grad():
                model(*batch) if isinstance(batch, tuple) else model(batch)
            count += 1
    if not count:
        raise GraceError("verify: no batches were given")
    return count


class _Comparison:
    """A forward hook that looks every batch up in the originals, and keeps the largest error."""

    def __init__(self, module: GraceEmbeddingBagCollection) -> None:
        configs = module.embedding_bag_configs()
        self.weights = {c.name: module.weight(t) for t, c in enumerate(configs)}
        self.sizes = {
            name: nn.Parameter(weight.detach().abs(), requires_grad=False)
            for name, weight in self.weights.items()
        }
        self.table_of = [t for t, c in enumerate(configs) for _ in c.feature_names]
        self.abs_error = [0.0] * len(configs)
        self.rel_error = [0.0] * len(configs)
        self.reads = torch.zeros(len(self.table_of), 2, dtype=torch.int64)

    @torch.no_grad()
    def __call__(
        self,
        module: GraceEmbeddingBagCollection,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: KeyedTensor,
    ) -> None:
        """Compare one output with the originals."""
        if not output.values().shape[0]:
            return
        features = args[0] if args else kwargs["features"]
        if isinstance(features, RewrittenBatch):
            features = features.bags
        wanted = stock_columns(module, self.weights, features)
        sizes = stock_columns(module, self.sizes, features, magnitudes=True)
        given = output.values().split(output.length_per_key(), dim=1)
        for t, got, want, size in zip(self.table_of, given, wanted, sizes, strict=True):
            error = (got - want).abs()
            same = got.eq(want) | (got.isnan() & want.isnan())
            error = torch.where(same, 0.0, error).nan_to_num(torch.inf, torch.inf)
            relative = error / size.clamp(min=torch.finfo(size.dtype).tiny)
            relative = torch.where(same, 0.0, relative.nan_to_num(torch.inf, torch.inf))
            self.abs_error[t] = max(self.abs_error[t], float(error.max()))
            self.rel_error[t] = max(self.rel_error[t], float(relative.max()))

    def checks(self, path: str, stale: dict[str, str]) -> list[TableCheck]:
        """Return the result of each table of this module."""
        checks = []
        for t, (name, weight) in enumerate(self.weights.items()):
            ids, rows = (
                self.reads[[f for f, of in enumerate(self.table_of) if of == t]].sum(0).tolist()
            )
            half = weight.dtype == torch.float16
            bound = MAX_RELATIVE_ERROR_HALF if half else MAX_RELATIVE_ERROR
            checks.append(
                TableCheck(
                    table=f"{path}.{name}" if path else name,
                    ids=ids,
                    rows_read=rows,
                    max_abs_error=self.abs_error[t],
                    max_rel_error=self.rel_error[t],
                    stale=stale.get(name),
                    equal=self.rel_error[t] <= bound and name not in stale,
                )
            )
        return checks


def stock_columns(
    module: GraceEmbeddingBagCollection,
    weights: dict[str, nn.Parameter],
    features: KeyedJaggedTensor,
    magnitudes: bool = False,
) -> list[Tensor]:
    """Look a batch up in a stock collection over ``weights``; float32 ``[B, D]`` per feature.

    Stock raises on padding and on bad ids, so those are taken out first as the module's policy
    says. Where that shortened a bag, stock sums and the mean is formed with the length as given.

    Args:
        module: The swapped module: tables, names and policy.
        weights: Rows of each table, by name.
        features: The batch the module received.
        magnitudes: Use the absolute values of the weights of the bags.
    """
    ids, offsets, bag_weights, stride, positions = bags_of(
        features, module.input_names, module.is_weighted(), False
    )
    if magnitudes and bag_weights is not None:
        bag_weights = bag_weights.abs()
    plans = [plan for plan in module.table_plans for _ in plan.spec.features]
    parts = [
        rewrite_counted(
            ids.numpy(), offsets.numpy()[at * stride : (at + 1) * stride + 1],
            None if bag_weights is None else bag_weights.detach().numpy(),
            NO_CODE, plan.spec.num_rows, module.rewriter.policy,
        )
        for at, plan in zip(positions, plans, strict=True)
    ]  # fmt: skip
    lengths = torch.cat([torch.from_numpy(np.diff(part[2])) for part in parts])
    given = torch.cat([offsets[at * stride : (at + 1) * stride + 1].diff() for at in positions])
    whole = bool((lengths == given).all())
    dtype = next(iter(weights.values())).dtype
    stock = _torchrec.adopt(
        module.unique_configs(summing=not whole), weights, module.is_weighted()
    ).eval()
    bags = KeyedJaggedTensor(
        keys=module.output_names,
        values=torch.from_numpy(np.concatenate([part[1] for part in parts])),
        lengths=lengths,
        weights=None if bag_weights is None
        else torch.from_numpy(np.concatenate([part[3] for part in parts])).to(dtype),
    )  # fmt: skip
    columns = list(stock(bags).values().split(module.dims, dim=1))
    if whole:
        return columns
    divisors = given.view(len(plans), stride, 1).clamp(min=1)
    return [
        column / divisors[f] if plans[f].spec.pooling == "mean" else column
        for f, column in enumerate(columns)
    ]
