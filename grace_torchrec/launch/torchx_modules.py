"""TorchX modules, imported when a job is made: TorchX is an extra of the installation.

Also the errors of a job: ``torchx run`` tells one class of errors without a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from grace_torchrec.errors import GraceError, NotSupported


def torchx_module(name: str) -> Any:
    """Import ``torchx.<name>``.

    Raises:
        NotSupported: TorchX is not installed.
    """
    try:
        return import_module(f"torchx.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchx":
            raise
        raise NotSupported(
            "jobs: TorchX is not installed; pip install 'grace-torchrec[launch]'"
        ) from error


@contextmanager
def refusing() -> Iterator[None]:
    """Make what is wrong with an argument of a job an error that ``torchx run`` tells in a line.

    Raises:
        GraceError: the block raised one; or TorchX did, of a resource, a mount or a number of nodes.
    """
    try:
        yield
    except (GraceError, KeyError, ValueError) as error:
        told = str(error.args[0] if error.args else error)
        raise _refused_job()(" ".join(told.split())) from error


@cache
def _refused_job() -> type[GraceError]:
    """Return a class of errors that is ours and one of those that TorchX expects of components."""
    of_a_component = torchx_module("specs.finder").ComponentValidationException

    class RefusedJob(GraceError, of_a_component):  # type: ignore[misc, valid-type]
        """A job that could only fail."""

    return RefusedJob
