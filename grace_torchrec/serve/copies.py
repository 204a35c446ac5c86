"""Copies: a model to serve, beside the one it was made from and independent of it.

Flow: model -> *skeleton_of*: everything copied but the embedding tables -> their served form is put
in -> *twin_of*: a second model over the same memory, for the second slot.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.refusals import all_places, no_collection
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.table_spec import stock_collections
from grace_torchrec.schedule.graph_module import Streams
from grace_torchrec.schedule.stream_pass import Scheduled


def skeleton_of(model: nn.Module) -> tuple[nn.Module, dict[str, EmbeddingBagCollection]]:
    """Copy a model, without the rows of its tables.

    Args:
        model: Stock or swapped; only read.

    Returns:
        The copy, in which stock collections (over the rows of ``model`` itself) stand
        where stock or swapped ones were; and these by dotted path.

    Raises:
        NotSupported: there is no collection to convert, or the model cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, GraceEmbeddingBagCollection):
            memo[id(module)] = _stock_of(module)
        elif type(module) is EmbeddingBagCollection:
            memo[id(module)] = module
    if not memo:
        raise no_collection("convert", model)
    try:
        skeleton: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:  # whatever the model's own parts raise
        raise NotSupported(f"convert: the model cannot be copied: {error}") from error
    return skeleton, dict(stock_collections(skeleton))


def put_everywhere(model: nn.Module, old: EmbeddingBagCollection, new: nn.Module) -> nn.Module:
    """Put a module in every place of another; return the model (which may be ``new`` itself)."""
    places = [path for path, module in all_places(model) if module is old]
    for path in places:
        if not path:
            return new
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new)
    return model


def twin_of(module: nn.Module, eager: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Copy the modules of a served model and none of its tensors.

    Args:
        module: What is called: it may be a graph over the modules of ``eager``.
        eager: The model.

    Returns:
        Their copies, which share modules where these do.
    """
    memo: dict[int, Any] = {}
    for held in (*module.modules(), *eager.modules()):
        if isinstance(held, Streams):
            memo[id(held)] = held  # queries of both slots go to the same streams
        memo |= {id(value): value for value in _fixed_in(vars(held))}
    twin: tuple[nn.Module, nn.Module] = copy.deepcopy((module, eager), memo)
    return twin


def _fixed_in(value: Any) -> Iterator[Any]:
    """Yield what is shared, not copied, in nested containers: tensors, plans and schedules."""
    if isinstance(value, Tensor | TablePlan | Scheduled):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _fixed_in(inner)


def _stock_of(module: GraceEmbeddingBagCollection) -> EmbeddingBagCollection:
    """Return the stock collection that a swapped one stands for, over the same rows."""
    configs = module.embedding_bag_configs()
    weights = {config.name: module.weight(table) for table, config in enumerate(configs)}
    return _torchrec.adopt(configs, weights, module.is_weighted()).eval()
