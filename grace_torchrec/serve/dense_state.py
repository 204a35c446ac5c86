"""Dense state: every tensor of a model outside its served tables, by name, and given back.

Flow: save_served writes *dense_state* and *plain_tensors* -> load_served -> *give_dense*,
*give_plain_tensors*.  A model's code is not saved, so whatever number it computes with must be among
these: Parameters, buffers (those kept out of state dicts too: a model made on the meta device lacks
them), and tensors in plain attributes, which no state dict has.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from grace_torchrec.containers import is_known, remade
from grace_torchrec.errors import NotSupported, PlanMismatch
from grace_torchrec.serve.table_batch_collection import TableBatchCollection

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
OF_TRACING = (
    "_tensor_constant"  # torch.fx leaves such attributes behind, of numbers that have a name
)


def dense_state(model: nn.Module) -> dict[str, Tensor]:
    """Return Parameters and buffers outside the served collections, by their name in the state dict."""
    inside = _inside_of_collections(model)
    found = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return {name: tensor for name, tensor in found.items() if not name.startswith(inside)}


def give_dense(model: nn.Module, saved: Mapping[str, Tensor], where: str) -> None:
    """Give a model its Parameters and buffers.

    Args:
        model: It holds tables to be served; its Parameters are replaced, not written.
        saved: What :func:`dense_state` returned for the model that was saved.
        where: They come from, for messages.

    Raises:
        PlanMismatch: the model has other ones; names the first.
    """
    present = dense_state(model)
    for name in (*present, *saved):
        told = [tuple(held[name].shape) if name in held else None for held in (present, saved)]
        if told[0] != told[1]:
            raise PlanMismatch(
                f"{where}: {name!r} has shape {told[1]} in the folder and {told[0]} in the model; "
                "load it with the model that was converted"
            )
    for name, tensor in saved.items():
        owner, _, own_name = name.rpartition(".")
        module = model.get_submodule(owner)
        if own_name in module._parameters:
            module._parameters[own_name] = nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[own_name] = tensor


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return tensors in plain attributes outside the served collections: ``path.name['key'][0]``.

    Dicts, lists and tuples are looked into; other objects are the model's code.

    Raises:
        NotSupported: an attribute holds a module that is none of the model's, with numbers of its own.
    """
    found: dict[str, Tensor] = {}
    known = {id(number) for number in _numbers(model)}
    for module, attribute, name in _attributes(model):
        for inner, value in _leaves(vars(module)[attribute], name):
            if isinstance(value, Tensor):
                found[inner] = value
            elif isinstance(value, nn.Module) and any(id(n) not in known for n in _numbers(value)):
                raise NotSupported(
                    f"save: {inner} is a module outside of model.modules(), its numbers would be left "
                    "out; register it, as in nn.ModuleList or nn.ModuleDict"
                )
    return found


def give_plain_tensors(model: nn.Module, saved: Mapping[str, Tensor], where: str) -> None:
    """Give a model the tensors of its plain attributes; arguments as of :func:`give_dense`.

    Shapes are those of the folder; parts of containers that the model lacks, such as what a forward
    left behind, are of no use to it.

    Raises:
        PlanMismatch: the folder lacks one that the model has; names it.
    """
    missing = next((name for name in plain_tensors(model) if name not in saved), None)
    if missing is not None:
        raise PlanMismatch(
            f"{where}: tensor attribute {missing!r} of the model is not in the folder; load it with the "
            "model that was converted, or save that anew (earlier releases left such tensors out)"
        )
    modules: dict[str, Any] = dict(model.named_modules())
    for name, tensor in saved.items():
        owner, _, attribute = name.rpartition(".")
        if attribute.isidentifier() and owner in modules:
            vars(modules[owner])[attribute] = tensor
    for module, attribute, name in _attributes(model):
        value = vars(module)[attribute]
        if any(inner in saved for inner, _ in _leaves(value, name)):
            vars(module)[attribute] = _with_leaves(value, name, saved)


def _numbers(module: nn.Module) -> Iterator[Tensor]:
    """Yield Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def _inside_of_collections(model: nn.Module) -> tuple[str, ...]:
    """Return how names of what is inside of a served collection begin."""
    return tuple(
        f"{path}." if path else ""
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, TableBatchCollection)
    )


def _attributes(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield (module, attribute, its dotted path) of the model's own plain attributes."""
    inside = _inside_of_collections(model)
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if not prefix.startswith(inside):
            for attribute in list(vars(module)):
                if attribute not in OF_EVERY_MODULE and not attribute.startswith(OF_TRACING):
                    yield module, attribute, f"{prefix}{attribute}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, part) of nested containers."""
    if is_known(value):
        keys = value if isinstance(value, dict) else range(len(value))
        parts = value.values() if isinstance(value, dict) else value
        for key, part in zip(keys, parts, strict=True):
            yield from _leaves(part, f"{name}[{key!r}]")
    else:
        yield name, value


def _with_leaves(value: Any, name: str, leaves: Mapping[str, Any]) -> Any:
    """Return a nested container in which parts are replaced by name."""
    if not is_known(value):
        return leaves.get(name, value)
    keys = value if isinstance(value, dict) else range(len(value))
    parts = value.values() if isinstance(value, dict) else value
    return remade(
        value,
        [_with_leaves(p, f"{name}[{k!r}]", leaves) for k, p in zip(keys, parts, strict=True)],
    )
