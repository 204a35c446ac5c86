"""Submit: hand a job to a scheduler of TorchX from Python, or see what would be handed over.

Flow: AppDef -> *scheduler request* (nothing is sent), or *a handle* of the job that was started.
Says which package a scheduler lacks; ``torchx run`` ends there with a traceback.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from grace_torchrec.errors import NotSupported
from grace_torchrec.launch.torchx_modules import torchx_module

if TYPE_CHECKING:
    from torchx.runner import Runner
    from torchx.specs import AppDef


def dry_run(app: "AppDef", scheduler: str, cfg: Mapping[str, Any] | None = None) -> str:
    """Return what ``scheduler`` would be asked for, as text; nothing is sent.

    Args:
        app: The job, what a component returns.
        scheduler: Name of a scheduler of TorchX: ``local_cwd``, ``slurm``, ``kubernetes`` ...
        cfg: Its options, as for ``torchx run -cfg``.

    Raises:
        NotSupported: TorchX does not know the scheduler, or a package it needs is not installed.
    """
    with _runner(scheduler) as runner:
        return str(runner.dryrun(app, scheduler, cfg=cfg))


def run(app: "AppDef", scheduler: str, cfg: Mapping[str, Any] | None = None) -> str:
    """Start the job, wait until it has ended, and return its state (``SUCCEEDED``, ``FAILED`` ...).

    Raises:
        NotSupported: TorchX does not know the scheduler, or a package it needs is not installed.
    """
    with _runner(scheduler) as runner:
        status = runner.wait(runner.run(app, scheduler, cfg=cfg), wait_interval=0.2)
        return str(status.state) if status is not None else "UNKNOWN"


@contextmanager
def _runner(scheduler: str) -> Iterator["Runner"]:
    """Give a runner; what ``scheduler`` lacks becomes one line.

    Raises:
        NotSupported: TorchX, or a package of the scheduler, is not installed; or TorchX does not
            know the scheduler.
    """
    runners, schedulers = torchx_module("runner"), torchx_module("schedulers")
    known = sorted(schedulers.get_scheduler_factories())
    if scheduler not in known:
        raise NotSupported(f"scheduler {scheduler!r}: TorchX knows {', '.join(known)}")
    try:
        with runners.get_runner() as runner:
            yield runner
    except ImportError as error:
        raise NotSupported(
            f"scheduler {scheduler!r}: needs the package {error.name}, which is not installed; "
            f"pip install 'torchx[{scheduler}]'"
        ) from error
