"""The op ``grace::pooled_lookup`` on a GPU: one launch a feature, no host sync.

Flow: ops.py registers this for CUDA, on first use -> pooling.py.  Meaning: reference.py.
Under RAISE bad ids add nothing and are counted on the device; the counts travel to the host
behind the kernels, and the first later call that finds them arrived raises (derived: raising
at once would make every call wait). Calls that are recorded in a CUDA graph only count, and
leave the counts of earlier calls where they are: events may not be asked while recording.
Shapes: F features, T tables, B bags of each feature (the stride), L ids, D_f dimension.
"""

# mypy: disable-error-code="no-untyped-call"

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace_kernels.device_rows import DeviceRows, device_subsets
from grace_kernels.op_inputs import check_bags
from grace_kernels.pieces import raise_bad_ids
from grace_kernels.pooling import pooled_lookup
from grace_kernels.reference import RAISE

__all__ = ["pooled_lookup_of_features", "raise_arrived_bad_ids", "send_bad_ids"]


@dataclass(frozen=True, eq=False)
class _Counts:
    """Bad ids of one call, on their way to the host; ``arrived`` is None where they are there."""

    bad_ids_F: Tensor
    labels: tuple[str, ...]
    num_rows: tuple[int, ...]
    arrived: torch.cuda.Event | None


_on_their_way: deque[_Counts] = deque()
_lock = threading.Lock()  # requests of several threads share the queue


def pooled_lookup_of_features(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    rows: Sequence[Tensor],
    hbm_rows: Sequence[Tensor],
    host_rows: Sequence[Tensor],
    mean: Sequence[bool],
    item_codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    guard: Tensor,
    subset_parts: Sequence[Tensor] | None = None,
    subset_marks: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Look up every feature; arguments and results as ops.py documents them.

    ``rows`` and ``host_rows`` may be pinned host memory; everything else is on the device.

    Raises:
        ValueError: a size or type is wrong; under RAISE, ids of an earlier call were outside
            their table.
    """
    raise_arrived_bad_ids()
    check_bags(values, offsets, weights, stride, positions)
    subsets = device_subsets(subset_parts, subset_marks, len(rows))
    dims = [rows[t].shape[1] for t in table_of]
    pooled = torch.empty(stride, sum(dims), dtype=torch.float32, device=values.device)
    reads = torch.zeros(len(positions), 2, dtype=torch.int64, device=values.device)
    bad_ids = torch.zeros(len(positions), dtype=torch.int32, device=values.device)
    column = 0
    for feature, (position, t) in enumerate(zip(positions, table_of, strict=True)):
        table = DeviceRows(
            rows[t].detach(), dims[feature], 0, hbm_rows[t], host_rows[t],
            hot_rows[t] if hot_rows[t].numel() else None, num_hbm_sums[t],
        )  # fmt: skip
        asked, read = pooled_lookup(
            values, offsets[position * stride : (position + 1) * stride + 1], weights,
            item_codes[t], table, pooled[:, column : column + dims[feature]],
            num_sums=num_hbm_sums[t] + host_rows[t].shape[0], mean=mean[t], policy=policy,
            bad_ids=bad_ids[feature : feature + 1], subsets=subsets[t],
        )  # fmt: skip
        reads[feature, 0] = asked.sum()
        reads[feature, 1] = read.sum()
        column += dims[feature]
    if policy == RAISE:
        send_bad_ids(bad_ids, tuple(labels), tuple(rows[t].shape[0] for t in table_of))
    return pooled, reads


def send_bad_ids(bad_ids_F: Tensor, labels: tuple[str, ...], num_rows: tuple[int, ...]) -> None:
    """Send the counts to the host behind the kernels; without a GPU they are there already.

    Args:
        bad_ids_F: int32, bad ids of each feature of a call.
        labels: "table 't', feature 'f'" of each.
        num_rows: Rows of the table of each.
    """
    if not bad_ids_F.is_cuda:
        _on_their_way.append(_Counts(bad_ids_F, labels, num_rows, None))
        raise_arrived_bad_ids()
    elif not torch.cuda.is_current_stream_capturing():
        on_host = bad_ids_F.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.Event()
        arrived.record()
        _on_their_way.append(_Counts(on_host, labels, num_rows, arrived))


def raise_arrived_bad_ids(*, wait: bool = False) -> None:
    """Raise for bad ids of earlier calls whose counts have arrived; while recording, not yet.

    Args:
        wait: Wait for the counts of all earlier calls.

    Raises:
        ValueError: names table, feature, how many ids, and the rows of the table.
    """
    while True:
        with _lock:
            if not _on_their_way:
                return
            counts = _on_their_way[0]
            if counts.arrived is not None and (
                torch.cuda.is_current_stream_capturing()
                or (not wait and not counts.arrived.query())
            ):
                return
            _on_their_way.popleft()
        if counts.arrived is not None:
            counts.arrived.synchronize()
        for feature, label in enumerate(counts.labels):
            raise_bad_ids(counts.bad_ids_F[feature], label, counts.num_rows[feature])
