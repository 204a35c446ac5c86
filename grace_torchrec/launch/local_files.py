"""Local files: what a job on this machine reads is there when the job is launched.

Flow: component -> *a role that knows what it reads* -> scheduler.  TorchX asks a role before a job is
handed over, dry runs too; schedulers that run elsewhere may see files that this machine does not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace_sharding.memory_files import memory_named
from grace_torchrec.errors import GraceError
from grace_torchrec.launch.torchx_modules import refusing, torchx_module

if TYPE_CHECKING:
    from torchx.specs import AppDef, Role

LOCAL = ("local", "local_cwd")  # what TorchX calls the scheduler that runs jobs in this folder
MEMORY, SERVED = "memory", "served"  # arguments that need be no path


def check(app: "AppDef", reads: Mapping[str, str]) -> "AppDef":
    """Return the job; once it is to run on this machine, what it reads must be here.

    Args:
        app: A job of one role.
        reads: What it reads: argument -> path, a machine for ``memory``, perhaps a model for ``served``.

    Raises:
        NotSupported: TorchX is not installed.
    """
    roles: list[Role] = [_role_that_looks(role, dict(reads)) for role in app.roles]
    app.roles = roles
    return app


def missing(reads: Mapping[str, str]) -> str | None:
    """Return what is wrong with the first argument that names nothing here, or None."""
    for name, text in reads.items():
        if name == MEMORY:
            try:
                memory_named(text)
            except GraceError as error:
                return str(error)
        elif not Path(text).exists() and not (name == SERVED and ":" in text):
            return f"--{name} {text!r}: no such file or folder in {Path.cwd()}"
    return None


def _role_that_looks(role: "Role", reads: dict[str, str]) -> "Role":
    """Return the role, which refuses to be launched here without what it reads."""
    base = torchx_module("specs").Role

    class LookingRole(base):  # type: ignore[misc, valid-type]  # TorchX is imported when a job is made
        """A role that looks for its files before it is handed to the scheduler of this machine."""

        def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
            """Refuse a job that could only fail.

            Raises:
                GraceError: what it reads is not on this machine.
            """
            told = missing(reads) if scheduler in LOCAL else None
            with refusing():
                if told is not None:
                    raise GraceError(
                        f"{self.name}: {told}; the job runs on this machine: write it first"
                    )
            return super().pre_proc(scheduler, dryrun_info)

    made: Role = LookingRole(**vars(role))
    return made
