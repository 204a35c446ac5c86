"""Refusals: embedding modules that are not swapped, each with its reason.

Flow: accelerate_ reports them; nothing here changes a model.
"""

from collections.abc import Iterator

from torch import nn
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
    EmbeddingCollection,
)
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantEmbeddingCollection

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

REASONS: tuple[tuple[type, str], ...] = (
    (GraceEmbeddingBagCollection, "already swapped"),
    (EmbeddingCollection, "returns a row for each id: nothing is summed, so there is nothing to store"),
    (QuantEmbeddingCollection, "returns a row for each id: nothing is summed, so there is nothing to store"),
    (QuantEmbeddingBagCollection, "already quantised: sums are built from the fp32 rows, swap before quantising"),
    (FeatureProcessedEmbeddingBagCollection, "its feature processors give each id a learned weight, and equal weights are rare"),
    (BaseManagedCollisionEmbeddingCollection, "its collision module remaps ids while serving, so stored sums would name other rows"),
    (ShardedModule, "already sharded: swap before DistributedModelParallel"),
)  # fmt: skip


def refused_modules(model: nn.Module) -> dict[str, str]:
    """Return dotted path -> reason for every embedding module that is not swapped.

    Modules inside a refused one are not listed.
    """
    refused: dict[str, str] = {}
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer in refused):
            continue
        reason = why_refused(module)
        if reason is not None:
            refused[path] = f"{type(module).__name__} {reason}"
    return refused


def no_collection(verb: str, model: nn.Module) -> NotSupported:
    """Return the error of a model that has no collection to work on, with what it has instead.

    Args:
        verb: Who was called.
        model: It.
    """
    why = "; ".join(f"{path or 'the model'}: {why}" for path, why in refused_modules(model).items())
    todo = "give its pooled tables to torchrec.EmbeddingBagCollection"
    if "already swapped" in why:
        todo = "call restore_ first"
    told = f": {why}" if why else ""
    return NotSupported(f"{verb}: model holds no stock EmbeddingBagCollection{told}; {todo}")


def why_refused(module: nn.Module) -> str | None:
    """Return why ``module`` is not swapped, None where nothing speaks against it."""
    if type(module) is EmbeddingBagCollection:
        return None
    why = next((why for kind, why in REASONS if isinstance(module, kind)), None)
    if why is None and isinstance(module, EmbeddingBagCollectionInterface):
        return "is not the stock collection but its subclass or twin, with a meaning of its own"
    return why


def all_places(module: nn.Module, path: str = "") -> Iterator[tuple[str, EmbeddingBagCollection]]:
    """Yield (dotted path, module) for every place of a stock collection, shared ones repeatedly."""
    if type(module) is EmbeddingBagCollection:
        yield path, module
    elif why_refused(module) is None:
        for name, child in module._modules.items():  # named_children() gives a shared child once
            if child is not None:
                yield from all_places(child, f"{path}.{name}" if path else name)
