"""TorchX modules, imported when a job is made: TorchX is an extra of the installation."""

from importlib import import_module
from typing import Any

from grace_torchrec.errors import NotSupported


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
