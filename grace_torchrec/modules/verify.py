"""Proof of a swap: the same batches through the swapped module and through its own originals.

Flow: swapped model + batches -> *verify* -> one value that says equal or not, table by table.
The answer to compare with is the float64 sum of the original rows kept inside, bag by bag: no
stock kernel stands between, and only the rows of a batch are copied.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_kernels.cpu import rewrite_counted
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.rewrite_ahead import rewrite_one, swapped_modules
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.modules.verified import TableCheck, Verified

# Most a pooled value may differ, relative to the sum of the absolute values behind it: for the
# rounding of rows as they are stored, and for float32 sums, whose error grows with the bag
# (2**-24 times the root of its length, by experience; times 8 to be sure).
ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-3}
PER_ROOT_OF_LENGTH = 8 * 2.0**-24
CHUNK_IDS = 1 << 16
NO_CODE = np.zeros(0, np.int32)
UNPROVEN = (
    "no id of it was compared: no batch reaches it, or the model calls it past its hooks (compiled?); "
    "verify with batches that ask for its rows, before compiling"
)


def verify(model: nn.Module, batches: Iterable[Any]) -> Verified:
    """Compare with the originals; arguments and errors: ``grace_torchrec.api``."""
    found = [
        (path, module) for path, module in model.named_modules()
        if isinstance(module, GraceEmbeddingBagCollection)
    ]  # fmt: skip
    if not found:
        raise GraceError(
            "verify: model holds no swapped module: accelerate_ was not called, or its plan leaves "
            "every table stock (swapped.modules is empty: nothing to verify); a model of convert is "
            "compared by its answers"
        )
    sharded = [path for path, module in found if module.is_sharded]
    if sharded:
        raise NotSupported(
            f"{sharded[0]}: is sharded, its rows are on several ranks; verify the model before "
            "DistributedModelParallel, or compare its sums with stale_tables() on every rank"
        )
    stale = {path: module.stale_tables() for path, module in found}
    comparisons = {path: _Comparison(module) for path, module in found}
    count, rewrote = (0, 0) if any(stale.values()) else _run(model, batches, found, comparisons)
    checks = [
        check
        for path, _ in found
        for check in comparisons[path].checks(path, stale[path], was_run=count > 0)
    ]
    return Verified(tuple(checks), count, rewrote)


def _run(
    model: nn.Module,
    batches: Iterable[Any],
    found: list[tuple[str, GraceEmbeddingBagCollection]],
    comparisons: dict[str, "_Comparison"],
) -> tuple[int, int]:
    """Run the model with every comparison hooked in; return how many batches, and how many rewritten."""
    count, rewrote = 0, 0
    # Plain bags would read the plain rows of tables planned ahead, and prove nothing of their sums.
    ahead = any(module.has_ahead for _, module in found)
    modules = swapped_modules(model) if ahead else {}
    with ExitStack() as stack:
        for path, module in found:
            hook = module.register_forward_hook(comparisons[path], with_kwargs=True)
            stack.callback(hook.remove)
            comparisons[path].reads = stack.enter_context(module.counting_reads())
        for batch in batches:
            rewritten = ahead and _is_plain(batch)
            given = rewrite_one(batch, modules) if rewritten else batch
            _call(model, given, f"batch {count}")
            count, rewrote = count + 1, rewrote + rewritten
            for comparison in comparisons.values():
                comparison.count(rewritten)
    if not count:
        raise GraceError("verify: no batches were given; give one or more")
    return count, rewrote


def _call(model: nn.Module, given: Any, where: str) -> None:
    """Run the model on a batch.

    Raises:
        GraceError: it refuses the batch.
    """
    try:
        with torch.no_grad():
            model(*given) if isinstance(given, tuple | list) else model(given)
    except GraceError:
        raise
    except Exception as error:  # whatever the model's own code raises
        raise GraceError(
            f"verify: the model refuses {where}: {type(error).__name__}: {error}"
        ) from error


def _is_plain(batch: Any) -> bool:
    """Tell whether a batch holds one KeyedJaggedTensor, not rewritten yet."""
    parts = batch if isinstance(batch, tuple | list) else [batch]
    return sum(isinstance(part, KeyedJaggedTensor) for part in parts) == 1 and not any(
        isinstance(part, RewrittenBatch) for part in parts
    )


class _Comparison:
    """A forward hook that sums every bag of a batch anew, and keeps the largest error."""

    def __init__(self, module: GraceEmbeddingBagCollection) -> None:
        plans = module.table_plans
        self.names = [plan.spec.name for plan in plans]
        self.table_of = [t for t, plan in enumerate(plans) for _ in plan.spec.features]
        self.abs_error = [0.0] * len(plans)
        self.rel_error = [0.0] * len(plans)
        self.beyond = [False] * len(plans)
        self.non_finite = [0] * len(plans)
        self.compared = [plan.sums is None for plan in plans]  # nothing of these is to be proven
        self.reads = torch.zeros(len(self.table_of), 2, dtype=torch.int64, device="cpu")
        self.seen = torch.zeros_like(self.reads)  # of the batches before
        self.as_given = torch.zeros_like(self.reads)
        self.ahead_F = torch.tensor(
            [plans[t].lookup == "ahead" for t in self.table_of], dtype=torch.bool
        )
        self.rewrote = False

    def count(self, rewritten: bool) -> None:
        """Count what the last batch reads as it was given.

        Args:
            rewritten: Whether it was plain and rewritten here: served plain, a table planned ahead
                reads a row for each of its ids.
        """
        now = self.reads.cpu()
        read = now - self.seen
        self.seen = now.clone()
        if rewritten:
            read[self.ahead_F, 1] = read[self.ahead_F, 0]
            self.rewrote = True
        self.as_given += read

    @torch.no_grad()
    def __call__(
        self,
        module: GraceEmbeddingBagCollection,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: KeyedTensor,
    ) -> None:
        """Compare one output with the originals."""
        features = args[0] if args else kwargs["features"]
        if isinstance(features, RewrittenBatch):
            features = features.bags
        ids, offsets, weights, stride, positions = bags_of(
            features, module.input_names, module.is_weighted(), False
        )
        given = output.values().split(output.length_per_key(), dim=1)
        for t, at, got in zip(self.table_of, positions, given, strict=True):
            bags = offsets[at * stride : (at + 1) * stride + 1]
            plan = module.table_plans[t]
            asked, rows, ends, row_weights = rewrite_counted(
                ids.numpy(), bags.numpy(), None if weights is None else weights.detach().numpy(),
                NO_CODE, plan.spec.num_rows, module.rewriter.policy,
            )  # fmt: skip
            weight = module.weight(t).detach()
            self.compared[t] |= asked > 0
            want, size = exact_sums(
                weight,
                torch.from_numpy(rows),
                torch.from_numpy(ends),
                None if row_weights is None else torch.from_numpy(row_weights),
            )
            lengths = bags.diff().clamp(min=1).unsqueeze(1)
            if plan.spec.pooling == "mean":
                want, size = want / lengths, size / lengths
            self._compare(t, got, want, size, lengths, weight.dtype)

    def _compare(
        self, t: int, got: Tensor, want: Tensor, size: Tensor, lengths: Tensor, dtype: torch.dtype
    ) -> None:
        """Keep the largest errors of one feature, and whether one is more than rounding."""
        if not got.numel():
            return
        rounded = want.float()  # a sum that overflows float32 does so in the stock model too
        same = got.eq(rounded) | (got.isnan() & rounded.isnan())
        error = torch.where(same, 0.0, (got - want).abs()).nan_to_num(torch.inf, torch.inf)
        relative = torch.where(same, 0.0, error / size.clamp(min=torch.finfo(torch.float32).tiny))
        relative = relative.nan_to_num(torch.inf, torch.inf)
        bound = ROUNDING[dtype] + PER_ROOT_OF_LENGTH * lengths.sqrt()
        self.abs_error[t] = max(self.abs_error[t], float(error.max()))
        self.rel_error[t] = max(self.rel_error[t], float(relative.max()))
        self.non_finite[t] += int((~rounded.isfinite()).sum())
        self.beyond[t] |= bool((relative > bound).any())

    def checks(self, path: str, stale: dict[str, str], *, was_run: bool) -> list[TableCheck]:
        """Return the result of each table of this module; stale models are not run."""
        checks = []
        for t, name in enumerate(self.names):
            of_table = [f for f, table in enumerate(self.table_of) if table == t]
            ids, rows = self.as_given[of_table].sum(0).tolist()
            proven = int(self.reads[of_table, 1].sum())
            unproven = UNPROVEN if was_run and not self.compared[t] else None
            is_ahead = self.rewrote and bool(self.ahead_F[of_table].any())
            checks.append(
                TableCheck(
                    table=f"{path}.{name}" if path else name,
                    ids=ids,
                    rows_read=rows,
                    max_abs_error=self.abs_error[t],
                    max_rel_error=self.rel_error[t],
                    stale=stale.get(name),
                    equal=not self.beyond[t] and name not in stale and unproven is None,
                    non_finite=self.non_finite[t],
                    rewritten_rows_read=proven if is_ahead else None,
                    unproven=unproven,
                )
            )
        return checks


def exact_sums(
    weight_ND: Tensor, rows_R: Tensor, offsets_B1: Tensor, weights_R: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sum the original rows of every bag, and their absolute values, in float64.

    Args:
        weight_ND: Original rows; only those that the batch reads are copied.
        rows_R: int64 rows of all bags.
        offsets_B1: int64.
        weights_R: float32, or None.

    Returns:
        float64 ``[B, D]`` sums and sums of absolute values.
    """
    num_bags, dim = offsets_B1.numel() - 1, weight_ND.shape[1]
    sums = torch.zeros(num_bags, dim, dtype=torch.float64, device=weight_ND.device)
    sizes = torch.zeros_like(sums)
    first = 0
    while first < num_bags:
        begin = int(offsets_B1[first])
        last = int(torch.searchsorted(offsets_B1, begin + CHUNK_IDS, right=True)) - 1
        last = max(first + 1, min(last, num_bags))
        picked = weight_ND[rows_R[begin : int(offsets_B1[last])]].double()
        if weights_R is not None:
            picked *= weights_R[begin : int(offsets_B1[last])].double().unsqueeze(1)
        places = torch.arange(picked.shape[0], device=picked.device)
        bags = offsets_B1[first : last + 1] - begin
        for values, out in ((picked, sums), (picked.abs(), sizes)):
            out[first:last] = F.embedding_bag(
                places, values, bags, mode="sum", include_last_offset=True
            )
        first = last
    return sums, sizes
