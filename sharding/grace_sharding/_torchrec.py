"""Every touch of TorchRec's planner beyond its documented extension points, in one place.

Flow: planner.py and estimator.py.  TorchRec is imported by this half of the package only.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    TopologyFactory,
    TrainerConfig,
)

from grace_sharding.memory_tiers import MemoryModel, TierName

# Kernels of both families: of sharded training modules, and of quantised ones.
HBM_KERNELS = ("fused", "dense", "quant")
UVM_KERNELS = ("fused_uvm", "quant_uvm")
CACHED_KERNELS = ("fused_uvm_caching", "quant_uvm_caching")
NOISY = (
    "torchrec.distributed.planner",
    "torchrec.distributed.utils",
    "torchrec.distributed.logger",
)


def _not_of_torchrec(record: logging.LogRecord) -> bool:
    """Tell records of others from those that TorchRec writes to the root logger itself."""
    return "torchrec" not in record.pathname.replace("grace_torchrec", "")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep TorchRec's planner from its line a proposal, inside the block."""
    known = [name for name in logging.root.manager.loggerDict if name.endswith("-NullHandler")]
    loggers = [logging.getLogger(name) for name in (*NOISY, *known)]  # known: of its method calls
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_not_of_torchrec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeFilter(_not_of_torchrec)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def reads_host(kernel: str) -> bool:
    """Tell kernels whose rows live in host memory from those whose rows live beside them."""
    return kernel in UVM_KERNELS or kernel in CACHED_KERNELS


def kernels_of(tier: TierName, memory: MemoryModel) -> list[str]:
    """Return the compute kernels that read a tier, for both families of modules."""
    if memory.hbm is None:  # a CPU has one memory, its kernels go by the plain names
        return list(HBM_KERNELS)
    if tier == "hbm":
        return list(HBM_KERNELS)
    return list(CACHED_KERNELS if memory.uvm == "cached" else UVM_KERNELS)


def topology(
    memory: MemoryModel, world_size: int, local_world_size: int, reserved: dict[TierName, int]
) -> Any:
    """Return TorchRec's description of the machine.

    Args:
        memory: HBM of each rank, and host memory of each host.
        world_size: Ranks.
        local_world_size: Ranks of a host; they share its memory evenly.
        reserved: Bytes of each tier that are taken on every rank already.
    """
    hbm = memory.hbm.num_bytes - reserved.get("hbm", 0) if memory.hbm else 0
    host = memory.host.num_bytes // local_world_size - reserved.get("host", 0)
    host_rate = memory.host.bytes_per_s / 1000  # TorchRec counts bytes a millisecond
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(
            world_size=world_size,
            local_world_size=local_world_size,
            hbm_cap_bytes=max(0, hbm),
            ddr_cap_bytes=max(0, host),
            ssd_cap_bytes=0,
        ),
        hardware_config=HardwareConfig(
            hbm_mem_bw=memory.hbm.bytes_per_s / 1000 if memory.hbm else None,
            ddr_mem_bw=host_rate,
            hbm_to_ddr_mem_bw=host_rate,
        ),
        kernel_config=KernelConfig(
            compute_device="cuda" if memory.hbm else "cpu", use_hardware_based_bandwidth=True
        ),
    )


def changed(constraints: ParameterConstraints | None, **fields: Any) -> ParameterConstraints:
    """Return the constraints with some fields replaced."""
    return replace(constraints or ParameterConstraints(), **fields)
