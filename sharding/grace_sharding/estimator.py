"""Estimator: how long a batch takes on every rank, by the rates of the machine.

Flow: MemoryModel -> *calibrated estimators* and *TierPerfModel* -> GraceShardingPlanner.
Source: GRACE, ASPLOS'23 (both memories are read at the same time: a maximum, never a sum).
Derived: the rates of TorchRec's kernels.  TorchRec assumes UVM at a tenth of the link, and adds
the memories up; here the rate of host memory is that of the machine, ids and pooled rows are
read and written in HBM, and a cached kernel misses as often as its cache is small.
"""

from typing import Any

from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.estimator.types import (
    EstimatorPerfCoefficients,
    PerfCoefficient,
    PerfCoefficientConfig,
)
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, PerfModel, ShardingOption
from torchrec.distributed.types import ShardingType

from grace_sharding._torchrec import CACHED_KERNELS, HBM_KERNELS, UVM_KERNELS, reads_host
from grace_sharding.memory_tiers import MemoryModel

CACHED_SHARE = 0.2  # of a table, in the cache of a cached kernel: TorchRec's default load factor


def kernel_rates(memory: MemoryModel) -> dict[tuple[str, str], float]:
    """Return (device, kernel) -> bytes a millisecond at which the kernel reads rows.

    Args:
        memory: The machine.

    >>> rates = kernel_rates(MemoryModel.named("h200"))
    >>> rates["cuda", "fused"] / rates["cuda", "fused_uvm"]
    96.0
    """
    host = memory.host.bytes_per_s / 1000
    if memory.hbm is None:
        return {("cpu", kernel): host for kernel in HBM_KERNELS}
    hbm = memory.hbm.bytes_per_s / 1000
    cached = 1 / (CACHED_SHARE / hbm + (1 - CACHED_SHARE) / host)
    rates = dict.fromkeys(HBM_KERNELS, hbm)
    rates |= dict.fromkeys(UVM_KERNELS, host) | dict.fromkeys(CACHED_KERNELS, cached)
    return {("cuda", kernel): rate for kernel, rate in rates.items()}


class _Calibrated(EmbeddingPerfEstimatorConfig):  # type: ignore[misc]
    """Rates and coefficients of one machine, as TorchRec's estimator factory takes them."""

    name = "grace"

    def __init__(self, memory: MemoryModel) -> None:
        self.kernel_device_bandwidths = kernel_rates(memory)
        stock = EmbeddingPerfEstimatorConfig.coefficients
        self.coefficients = PerfCoefficientConfig(
            table_wise=stock.table_wise,
            column_wise=stock.column_wise,
            row_wise=stock.row_wise,
            table_row_wise=stock.table_row_wise,
            data_parallel=stock.data_parallel,
            by_kernel=_host_kernels_read_rows_only(self.kernel_device_bandwidths),
        )


def _host_kernels_read_rows_only(
    rates: dict[tuple[str, str], float],
) -> dict[tuple[str, str], EstimatorPerfCoefficients]:
    """Return coefficients of host kernels: their ids and pooled rows move at the rate of HBM."""
    hbm = rates.get(("cuda", HBM_KERNELS[0]))
    if hbm is None:
        return {}
    found = {}
    for kernel in (*UVM_KERNELS, *CACHED_KERNELS):
        share = rates["cuda", kernel] / hbm
        forward = PerfCoefficient(
            input_read_size_multiplier=share,
            lookup_size_multiplier=1.0,
            embedding_output_multiplier=share,
            hash_size_multiplier=0.0,
        )
        for kind in ShardingType:
            found[kind.value, kernel] = EstimatorPerfCoefficients(fwd=forward, bwd=None)
    return found


def calibrated_estimators(
    memory: MemoryModel, topology: Any, constraints: dict[str, ParameterConstraints]
) -> list[Any]:
    """Return the estimators of time and of bytes for an enumerator; inference only.

    Args:
        memory: The machine.
        topology: TorchRec's description of it.
        constraints: By table; their pooling factors are measured ones.
    """
    perf = EmbeddingPerfEstimatorFactory.create_with_config(
        _Calibrated(memory), is_inference=True, topology=topology, constraints=constraints
    )
    storage = EmbeddingStorageEstimator(
        topology=topology, constraints=constraints, is_inference=True
    )
    return [perf, storage]


class TierPerfModel(PerfModel):  # type: ignore[misc]
    """Rates a plan by its slowest rank; on a rank both memories are read at the same time.

    Args:
        world_size: Ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the milliseconds of a batch."""
        busy = [[0.0, 0.0] for _ in range(self._world_size)]
        comms = [0.0] * self._world_size
        for option in plan:
            host = reads_host(option.compute_kernel)
            for shard in option.shards:
                busy[shard.rank][host] += shard.perf.fwd_compute + shard.perf.prefetch_compute
                comms[shard.rank] += shard.perf.fwd_comms + shard.perf.input_dist_comms
        return max(max(tiers) + c for tiers, c in zip(busy, comms, strict=True))
