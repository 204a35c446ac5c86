"""The bundled models with example batches: dlrm, wide_deep, din, bst in plain torch.

Flow: a name -> *Example* -> schedule, simulate, benches, tests.
Sizes are those of small production models: 26, 40 or 12 tables, batch 64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from grace_torchrec.errors import GraceError
from grace_torchrec.models.bst import Bst
from grace_torchrec.models.din import Din
from grace_torchrec.models.dlrm_dense import Dlrm
from grace_torchrec.models.parts import TableBags, feature_names, random_features
from grace_torchrec.models.wide_deep import WideDeep

NUM_ROWS, POOLING, NUM_DENSE = 2000, 8, 13


@dataclass(frozen=True)
class Example:
    """A model in eval mode and batches for it: each a tuple of positional arguments."""

    name: str
    model: nn.Module
    batches: tuple[tuple[Any, ...], ...]


def bundled(name: str, *, batch: int = 64, batches: int = 1, seed: int = 0) -> Example:
    """Return a bundled model with random weights and batches.

    Args:
        name: ``dlrm``, ``wide_deep``, ``din`` or ``bst``.
        batch: Samples B of a batch.
        batches: Number of batches.
        seed: Of weights and batches.

    Raises:
        GraceError: no model has this name.
    """
    if name not in MODELS:
        raise GraceError(f"model {name!r}: not one of {', '.join(MODELS)}; choose one of them")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, draw = MODELS[name]()
    inputs = tuple(draw(batch, generator) for _ in range(batches))
    return Example(name, model.eval(), inputs)


Draw = Callable[[int, torch.Generator], tuple[Any, ...]]


def _dlrm() -> tuple[nn.Module, Draw]:
    """Return DLRM over 26 tables of dimension 64."""
    names = feature_names(26)

    def draw(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Return dense inputs and bags."""
        dense = torch.randn(batch, NUM_DENSE, generator=generator)
        return dense, random_features(names, NUM_ROWS, batch, POOLING, generator)

    return Dlrm(TableBags(names, NUM_ROWS, 64), names, 64, NUM_DENSE), draw


def _wide_deep() -> tuple[nn.Module, Draw]:
    """Return Wide & Deep over 40 features, each with a wide and a deep table."""
    names = feature_names(40)

    def draw(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Return dense inputs and bags."""
        dense = torch.randn(batch, NUM_DENSE, generator=generator)
        return dense, random_features(names, NUM_ROWS, batch, POOLING, generator)

    deep, wide = TableBags(names, NUM_ROWS, 32, "mean"), TableBags(names, NUM_ROWS, 1)
    return WideDeep(deep, wide, names, 32, NUM_DENSE), draw


def _din() -> tuple[nn.Module, Draw]:
    """Return DIN over four histories of 50 items and 12 features."""
    names, histories, length = feature_names(12), feature_names(4, "history"), 50

    def draw(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Return histories, targets and bags."""
        seen = {
            name: torch.randint(NUM_ROWS, (batch, length), generator=generator)
            for name in histories
        }
        wanted = {
            name: torch.randint(NUM_ROWS, (batch,), generator=generator) for name in histories
        }
        return seen, wanted, random_features(names, NUM_ROWS, batch, POOLING, generator)

    return Din(TableBags(names, NUM_ROWS, 32), names, histories, NUM_ROWS, 32, length), draw


def _bst() -> tuple[nn.Module, Draw]:
    """Return BST over a history of 21 items and 12 features."""
    names, length = feature_names(12), 21

    def draw(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
        """Return a history and bags."""
        seen = torch.randint(NUM_ROWS, (batch, length), generator=generator)
        return seen, random_features(names, NUM_ROWS, batch, POOLING, generator)

    return Bst(TableBags(names, NUM_ROWS, 32), names, NUM_ROWS, 32, length), draw


MODELS: dict[str, Callable[[], tuple[nn.Module, Draw]]] = {
    "dlrm": _dlrm,
    "wide_deep": _wide_deep,
    "din": _din,
    "bst": _bst,
}
