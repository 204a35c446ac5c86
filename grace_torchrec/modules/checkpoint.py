"""Checkpoints: exactly the stock state-dict keys, both ways; a load rebuilds the sums.

Flow: state dicts of a swapped model hold ``embedding_bags.<table>.weight`` and nothing else of
this package; stored rows are derived state and never saved.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

State = MutableMapping[str, Any]


def install_hooks(module: "GraceEmbeddingBagCollection") -> None:
    """Rename keys when ``module`` is saved and loaded, and rebuild after a load."""
    module._register_state_dict_hook(_to_stock_keys)
    module.register_load_state_dict_pre_hook(_to_inner_keys)
    module.register_load_state_dict_post_hook(_rebuild)


def _keys(module: "GraceEmbeddingBagCollection", prefix: str) -> list[tuple[str, str]]:
    """Return (stock key, inner key) of every original table."""
    return [
        (f"{prefix}embedding_bags.{name}.weight", f"{prefix}{tier}.embedding_bags.{name}.weight")
        for name, tier in module.homes()
    ]


def _to_stock_keys(
    module: "GraceEmbeddingBagCollection", state: State, prefix: str, metadata: Any
) -> State:
    """Name the originals as the stock collection does; leave stored rows out."""
    originals = [
        (stock, state.pop(inner)) for stock, inner in _keys(module, prefix) if inner in state
    ]
    for tier in ("hbm", "host"):
        for key in [key for key in state if key.startswith(f"{prefix}{tier}.")]:
            del state[key]
    state.update(originals)
    return state


def _to_inner_keys(
    module: "GraceEmbeddingBagCollection", state: State, prefix: str, *rest: Any
) -> None:
    """Give loaded tables their inner names; stored rows take their present values."""
    for stock, inner in _keys(module, prefix):
        if stock in state:
            state[inner] = state.pop(stock)
    for tier in ("hbm", "host"):
        inner_module = getattr(module, tier, None)
        if inner_module is None:
            continue
        originals = {inner for _, inner in _keys(module, prefix)}
        for name, value in inner_module.state_dict(keep_vars=True).items():
            if f"{prefix}{tier}.{name}" not in originals:
                state[f"{prefix}{tier}.{name}"] = value


def _rebuild(module: "GraceEmbeddingBagCollection", incompatible: Any) -> None:
    """Name missing tables as the caller knows them, then rebuild what was derived."""
    for index, key in enumerate(incompatible.missing_keys):
        for tier in ("hbm", "host"):
            key = key.replace(f"{tier}.embedding_bags.", "embedding_bags.")
        incompatible.missing_keys[index] = key
    module.rebuild_sums()
