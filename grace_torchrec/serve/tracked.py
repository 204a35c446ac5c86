"""Tracked rows: what TorchRec's ModelDeltaTracker saw change, as a delta.

Flow: DistributedModelParallel + its ModelDeltaTracker -> *tracked_rows* -> publish_delta.
The tracker knows which rows of this rank's shards were looked up, by their number in the shard; the
rows themselves are read from the model.  With several ranks each has a part of the delta.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from grace_torchrec.errors import GraceError, NotSupported

PREFIXES = ("_dmp_wrapped_module.", "module.")


def tracked_rows(
    tracker: Any, model: nn.Module, consumer: str | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the rows that were looked up in training since this consumer last asked.

    Args:
        tracker: A ``ModelDeltaTrackerTrec`` of ``model``, in any of its modes.
        model: The DistributedModelParallel that is trained.
        consumer: Name under which the tracker counts; its default one if left out.

    Returns:
        Table name -> (int64 ids of the whole table ``[K]``, rows ``[K, D]``), on the CPU.

    Raises:
        GraceError: the model has no such table.
        NotSupported: a table is sharded by columns: this rank has no whole rows of it.
    """
    state = model.state_dict()
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for path, ids in tracker.get_unique_ids(consumer).items():
        name = path
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        weight = state.get(f"{name}.weight")
        if weight is None:
            raise GraceError(f"delta: the tracker saw {path!r}, the model has no such table")
        table = name.rpartition(".")[2]
        first, rows = _local_rows(table, weight)
        local = ids.to(rows.device).long()
        found[table] = ((local + first).cpu(), rows.detach()[local].float().cpu())
    return found


def _local_rows(table: str, weight: Any) -> tuple[int, Tensor]:
    """Return the first row of this rank's shard, and the shard."""
    if not isinstance(weight, ShardedTensor):
        assert isinstance(weight, Tensor)
        return 0, weight
    shards = weight.local_shards()
    if len(shards) != 1 or shards[0].tensor.shape[1] != weight.metadata().size[1]:
        raise NotSupported(
            f"delta: table {table!r} is sharded by columns, or not once on this rank; "
            "gather its rows and publish them as (ids, rows)"
        )
    return int(shards[0].metadata.shard_offsets[0]), torch.as_tensor(shards[0].tensor)
