"""Options and habits that sub-commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from grace_sharding.memory_tiers import MemoryModel, MemoryModelError
from grace_torchrec.errors import GraceError


def memory_model(name: str, hbm_bytes: int | None) -> MemoryModel:
    """Return the machine that ``--memory`` and ``--hbm-bytes`` name.

    Raises:
        GraceError: there is no such machine, or the size is no size.
    """
    try:
        return MemoryModel.named(name, hbm_bytes=hbm_bytes)
    except MemoryModelError as error:
        raise GraceError(str(error)) from error


@contextmanager
def progress_to_stderr() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: a spinner on a terminal, else silent."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("starting") as status:
        yield status.update
