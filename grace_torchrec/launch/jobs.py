"""Jobs: a sub-command or a training script as a TorchX job of one role.

Flow: component -> *AppDef* -> scheduler.  The checksums that a job was given are metadata of the job
(AWS Batch makes tags of them) and environment variables of its process, ``GRACE_PLAN_SHA256`` and
``GRACE_PROFILE_FINGERPRINT`` (which every scheduler passes on).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grace_torchrec.launch.torchx_modules import refusing, torchx_module

if TYPE_CHECKING:
    from torchx.specs import AppDef


@dataclass(frozen=True)
class Place:
    """Where a job runs: image, resources, environment and mounts, as TorchX names them."""

    image: str
    cpu: int
    gpu: int
    memMB: int
    h: str
    env: Mapping[str, str] | None
    mounts: Sequence[str] | None


def sub_command(command: Sequence[str], given: Mapping[str, str], place: Place) -> "AppDef":
    """Return the job that runs ``python -m grace_torchrec`` with these arguments.

    Args:
        command: Name of the sub-command and its arguments.
        given: Checksums of what the job is given, by name.
        place: Where it runs.

    Raises:
        NotSupported: TorchX is not installed.
        GraceError: TorchX knows no such resource or mount.
    """
    specs = torchx_module("specs")
    name = f"grace-{command[0]}"
    with refusing():
        resource = specs.resource(
            cpu=place.cpu, gpu=place.gpu, memMB=place.memMB, h=place.h or None
        )
        mounts = specs.parse_mounts(list(place.mounts or ()))
    role = specs.Role(
        name=name,
        image=place.image,
        entrypoint="python",
        args=["-m", "grace_torchrec", *command],
        env={**_variables(given), **(place.env or {})},
        resource=resource,
        mounts=mounts,
    )
    app: AppDef = specs.AppDef(name=name, roles=[role], metadata=dict(given))
    return app


def training(script: str, args: Sequence[str], j: str, place: Place) -> "AppDef":
    """Return the job that runs ``script`` under torchrun on ``j`` (nodes x processes of a node).

    Raises:
        NotSupported: TorchX is not installed.
        GraceError: TorchX knows no such resource or mount, or cannot read ``j``.
    """
    dist = torchx_module("components.dist")
    component = getattr(dist, "torchrun", None) or dist.ddp  # ddp was renamed after 0.7
    with refusing():
        app: AppDef = component(
            *args,
            script=script,
            name="/grace-train",
            j=j,
            image=place.image,
            cpu=place.cpu,
            gpu=place.gpu,
            memMB=place.memMB,
            h=place.h or None,
            env=dict(place.env or {}),
            mounts=list(place.mounts or ()),
        )
    return app


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that carry the checksums."""
    return {f"GRACE_{name.upper()}": value for name, value in given.items()}
