"""Checkpoints: exactly the stock state-dict keys, both ways; a load rebuilds the sums.

Flow: state dicts of a swapped model hold ``embedding_bags.<table>.weight`` and nothing else of
this package; stored rows are derived state and never saved.  Sharded models hold ShardedTensors
under the same keys; a load leaves their sums stale until all ranks rebuild them.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from grace_torchrec.modules._torchrec import shape_of

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
    module: "GraceEmbeddingBagCollection",
    state: State,
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Give loaded tables their inner names; everything else takes its present value.

    So torch finds every inner key, and what is missing or has the wrong shape is told here, by
    the name that the caller knows.
    """
    present = {
        f"{prefix}{tier}.{name}": value
        for tier, inner in module.inner_collections().items()
        for name, value in inner.state_dict(keep_vars=True).items()
    }
    for stock, inner in _keys(module, prefix):
        given = state.pop(stock, None)
        if given is None:
            missing_keys.append(stock)
        elif shape_of(given) != shape_of(present[inner]):
            error_msgs.append(
                f"size mismatch for {stock}: the checkpoint has shape {shape_of(given)}, "
                f"the model {shape_of(present[inner])}."
            )
        else:
            present[inner] = given
    tiers = tuple(f"{prefix}{tier}." for tier in module.inner_collections())
    for key in [key for key in state if key.startswith(tiers)]:
        unexpected_keys.append(key)
        del state[key]
    state.update(present)


def _rebuild(module: "GraceEmbeddingBagCollection", incompatible: Any) -> None:
    """Rebuild what was derived; sharded sums wait for ``rebuild_sums_``, which all ranks call."""
    if module.is_sharded:
        module.sharded.forget()
    else:
        module.rebuild_sums()
