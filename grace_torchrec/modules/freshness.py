"""Freshness: stored sums answer only while they equal the rows they were built from.

Flow: every forward calls ``grace::require_fresh`` first; its result feeds the lookup op, so
the check survives fx tracing and dead-code elimination.

What notices a write to an original row:
- the Parameter, its version counter or its address changed (in-place ops, loads, ``p.data = x``),
  or the version counter of the stored rows did;
- any optimiser that holds it took a step (fused ones do not move the counter);
- a rotating sample compares stored rows with their sums, a few every few calls, so writes that
  PyTorch does not see (``p.data.copy_``, numpy) are found within a number of calls that the
  module states (``calls_to_check_all``); these reads are in no count of rows read;
- sums of unknown origin (a deepcopy, an unpickled model) are compared in full at first use.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from grace_kernels._stale import first_stale_row
from grace_torchrec.errors import StaleSums
from grace_torchrec.modules.lookup import refuse_unreadable
from grace_torchrec.sums.build_rows import sum_sets

# Stored rows compared, every so many forwards: rows come from memory, and small batches feel them.
LEAST_ROWS, MOST_ROWS, CALLS_BETWEEN = 4, 32, 4
FEW_SAMPLES = 16384  # a table gets more than the least where that many samples would not cover it
STEPPED = "an optimiser that holds the table took a step"


@dataclass
class BuiltFrom:
    """The state of the original weight, and of the stored rows, when they were built.

    ``keeps_address`` holds the storage, so that no later tensor can get the same address.
    """

    weight: "weakref.ref[Tensor]"
    version: int
    stored_version: int
    address: int
    keeps_address: torch.UntypedStorage
    stepped: bool = False
    next_row: int = 0
    calls: int = 0


_BUILT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # stored rows -> BuiltFrom
_builds = itertools.count(1)
_last_build = [0]  # number of the last build in this process


def record_built(weight: Tensor, stored: Tensor) -> None:
    """Remember that ``stored`` was just built from ``weight``."""
    _watch_optimizers()
    _BUILT[stored] = BuiltFrom(
        weakref.ref(weight),
        _version(weight),
        _version(stored),
        weight.data_ptr(),
        weight.untyped_storage(),
    )
    _last_build[0] = next(_builds)  # last: who sees the number sees the record too


def why_stale(weight: Tensor, stored: Tensor) -> str | None:
    """Return why ``stored`` may not match ``weight``, None if nothing speaks against it."""
    built = _BUILT.get(stored)
    return None if built is None else _why_differs(built, weight, stored)


def _why_differs(built: BuiltFrom, weight: Tensor, stored: Tensor) -> str | None:
    """Return what changed since the rows were built."""
    if built.stepped:
        return STEPPED
    if built.weight() is not weight or built.address != weight.data_ptr():
        return "the table has other storage"
    if built.version != _version(weight):
        return "the table was written to"
    if built.stored_version != _version(stored):
        return "its stored rows were written to"
    return None


def differing_row(
    weight: Tensor, stored: Tensor, indptr: Tensor, items: Tensor, first: int, last: int
) -> int:
    """Return the first stored row in ``first .. last - 1`` that is not its sum, or -1.

    Args:
        weight: ``[N, D]`` original rows.
        stored: ``[R, D]`` stored rows.
        indptr: int64 ``[R + 1]``.
        items: int32 item ids of the sets.
        first: First row to compare.
        last: One past the last.
    """
    if weight.dtype == torch.float32:
        rows = weight.detach().numpy()
        return int(
            first_stale_row(
                rows, stored.detach().numpy(), indptr.numpy(), items.numpy(), first, last
            )
        )
    # Both as they are stored: half rows are rounded, or overflow, when they are built.
    want = sum_sets(weight.detach(), indptr[first : last + 1], items).to(weight.dtype).float()
    have = stored[first:last].float()
    close = torch.isclose(
        have, want, rtol=2 * torch.finfo(weight.dtype).eps, atol=1e-6, equal_nan=True
    )
    bad = torch.nonzero(~close.all(dim=1))
    return first + int(bad[0]) if bad.numel() else -1


def require_fresh(
    tables: Sequence[Tensor],
    table_of: Sequence[int],
    stored: Sequence[Tensor],
    indptrs: Sequence[Tensor],
    items: Sequence[Tensor],
    labels: Sequence[str],
) -> None:
    """Raise unless kernels read every table and stored rows match; advance the rotating sample.

    Args:
        tables: Original rows of every table.
        table_of: Which of them each table of stored rows belongs to.
        stored: Stored rows.
        indptrs: Sets of the stored rows.
        items: Items of the sets.
        labels: Names of the original tables for the message.

    Raises:
        StaleSums: names the table, the reason and what to do.
        NotSupported: a table was given a type or layout that no kernel reads.
    """
    for weight, label in zip(tables, labels, strict=True):
        refuse_unreadable(label, weight)
    sampled = whose_turn(_count_call(stored), len(stored)) if stored else -1
    for place, (table, rows) in enumerate(zip(table_of, stored, strict=True)):
        weight, indptr, members = tables[table], indptrs[place], items[place]
        built = _BUILT.get(rows)
        reason = None if built is None else _why_differs(built, weight, rows)
        if reason is None and built is None:
            row = differing_row(weight, rows, indptr, members, 0, rows.shape[0])
            if row >= 0:
                reason = f"stored row {row} is not the sum of its rows"
            else:
                record_built(weight, rows)
        elif reason is None and place == sampled:
            compare = functools.partial(differing_row, weight, rows, indptr, members)
            reason = compare_next(built, rows.shape[0], compare)
        if reason is not None:
            raise stale(labels[table], reason)


def compare_next(
    built: BuiltFrom, num_rows: int, differing: Callable[[int, int], int]
) -> str | None:
    """Compare the rows whose turn it is with their sums; return what differs."""
    first = built.next_row
    last = min(num_rows, first + rows_a_sample(num_rows))
    row = int(differing(first, last))
    if row >= 0:
        return f"stored row {row} is not the sum of its rows"
    built.next_row = 0 if last == num_rows else last
    return None


def built_from(stored: Tensor) -> BuiltFrom:
    """Return what stored rows of known origin were built from."""
    built: BuiltFrom = _BUILT[stored]
    return built


def last_build() -> int:
    """Return the number of the last build in this process."""
    return _last_build[0]


def stale(label: str, reason: str) -> StaleSums:
    """Say which table, why, and what to do."""
    return StaleSums(f"table {label}: {reason}; call grace_torchrec.rebuild_sums_(model)")


def whose_turn(calls: int, num_tables: int) -> int:
    """Return which table of stored rows is sampled in call number ``calls``, -1 for none."""
    return -1 if calls % CALLS_BETWEEN else calls // CALLS_BETWEEN % num_tables


def _count_call(stored: Sequence[Tensor]) -> int:
    """Return the number of this call for the first table of stored rows, 0 if it is unknown."""
    lead: BuiltFrom | None = _BUILT.get(stored[0]) if stored else None
    if lead is None:
        return 0
    lead.calls += 1
    return lead.calls


def rows_a_sample(num_rows: int) -> int:
    """Return how many stored rows the rotating sample compares at once."""
    return min(MOST_ROWS, max(LEAST_ROWS, -(-num_rows // FEW_SAMPLES)))


def calls_to_check_all(num_rows: Sequence[int]) -> int:
    """Return after how many forwards every stored row was compared: tables take turns."""
    samples = max((-(-n // rows_a_sample(n)) for n in num_rows), default=0)
    return CALLS_BETWEEN * len(num_rows) * samples


def _version(weight: Tensor) -> int:
    """Return the version counter; inference tensors have none."""
    return -1 if weight.is_inference() else weight._version


_hook_handle: list[torch.utils.hooks.RemovableHandle] = []


def _watch_optimizers() -> None:
    """Install the global step hook once, when the first sums are built."""
    if not _hook_handle:
        _hook_handle.append(optimizer.register_optimizer_step_post_hook(_after_step))


def _after_step(stepped: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Mark the sums of every table that ``stepped`` holds."""
    if not len(_BUILT):
        return
    held = {id(p) for group in stepped.param_groups for p in group["params"]}
    for built in list(_BUILT.values()):
        weight = built.weight()
        if weight is not None and id(weight) in held:
            built.stepped = True


def _require_fresh_op(
    asked: Tensor,
    tables: Sequence[Tensor],
    table_of: Sequence[int],
    stored: Sequence[Tensor],
    indptrs: Sequence[Tensor],
    items: Sequence[Tensor],
    labels: Sequence[str],
) -> Tensor:
    """Check, and return an empty tensor that the lookup takes as proof.

    ``asked`` (the ids or rows about to be looked up) is not read: it depends on the batch, and so
    makes a tracer keep the call in the graph instead of running it once.
    """
    require_fresh(tables, table_of, stored, indptrs, items, labels)
    return torch.empty(0, dtype=torch.int8, device="cpu")


_LIBRARY = torch.library.Library("grace", "FRAGMENT")
_LIBRARY.define(
    "require_fresh(Tensor asked, Tensor[] tables, int[] table_of, Tensor[] stored, Tensor[] indptrs, "
    "Tensor[] items, str[] labels) -> Tensor"
)
_LIBRARY.impl("require_fresh", _require_fresh_op, "CompositeExplicitAutograd")
torch.library.register_fake(
    "grace::require_fresh", lambda *args: torch.empty(0, dtype=torch.int8), lib=_LIBRARY
)
