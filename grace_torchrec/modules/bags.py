"""Bags at the door: what a KeyedJaggedTensor must look like before anything is looked up.

Flow: KeyedJaggedTensor -> *bags_of* -> rewriting and lookup ops.  The module that calls
``bags_of`` wraps it for fx: under a tracer its checks become a node of the graph instead of
running once at trace time.
Shapes: F features, B bags of each (the stride), L ids.
"""

import logging

import torch
from torch import Tensor, library
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels.cpu import first_misfit
from grace_torchrec.arguments import told
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules import _torchrec

logger = logging.getLogger(__name__)
_warned: set[str] = set()
ID_TYPES = (torch.int32, torch.int64)


def bags_of(
    features: KeyedJaggedTensor, names: list[str], is_weighted: bool, strict: bool
) -> tuple[Tensor, Tensor, Tensor | None, int, list[int]]:
    """Check a batch and return what the ops take.

    Args:
        features: Ids of at least the features ``names``, in any order.
        names: Features to look up, in output order.
        is_weighted: Whether the collection uses weights.
        strict: Refuse weights that would be ignored instead of warning once.

    Returns:
        ids int32 or int64 ``[L]``, offsets int64, weights float32 or None, stride B, and the
        position of each name among the features.

    Raises:
        GraceError: a feature is missing, or lengths, offsets, ids or weights do not fit together.
        NotSupported: variable batch sizes, ignored weights under ``strict``, a torch.func transform.
    """
    if _torchrec.in_functorch():
        raise NotSupported(
            "batch is inside a torch.func transform, whose tensors kernels cannot read: "
            "call the model outside of it"
        )
    if not hasattr(features, "lengths_or_none"):  # a dict has keys() too
        raise GraceError(f"batch is {told(features)}, a KeyedJaggedTensor is expected")
    keys = features.keys()
    place = {key: number for number, key in enumerate(keys)}  # of equal keys the last, as stock
    missing = [name for name in names if name not in place]
    if missing:
        raise GraceError(f"batch lacks feature {missing[0]!r}; it has {keys}")
    if features.variable_stride_per_key() or features.inverse_indices_or_none() is not None:
        raise NotSupported(
            "batch has a variable number of bags for each feature (VBE); "
            "expand it, or leave this collection stock with filter_fn"
        )
    ids = features.values()
    if ids.dtype not in ID_TYPES or ids.dim() != 1:
        raise GraceError(
            f"batch ids are {ids.dtype} of shape {tuple(ids.shape)}; int32 or int64 vector expected"
        )
    stride, offsets, num_ids = _stride_and_offsets(features, len(keys))
    if num_ids != ids.numel():
        raise GraceError(f"batch lengths add up to {num_ids}, there are {ids.numel()} ids")
    weights = _weights(features, is_weighted, strict)
    return ids.contiguous(), offsets, weights, stride, [place[name] for name in names]


def _stride_and_offsets(features: KeyedJaggedTensor, num_keys: int) -> tuple[int, Tensor, int]:
    """Return bags of each feature, checked int64 offsets, and the last of them."""
    lengths = features.lengths_or_none()
    given = features.offsets_or_none()
    if lengths is None and given is None:
        raise GraceError("batch has neither lengths nor offsets; pass one of them")
    lengths = lengths.flatten() if lengths is not None and lengths.dim() != 1 else lengths
    num_bags = lengths.numel() if lengths is not None else max(given.numel() - 1, 0)
    if num_keys == 0 or num_bags % num_keys:
        raise GraceError(
            f"batch has {num_bags} lengths for {num_keys} features; keys x stride expected"
        )
    stride = num_bags // num_keys
    if num_bags and features.stride() != stride:
        raise GraceError(
            f"batch has {num_bags} lengths for {num_keys} features of stride {features.stride()}; "
            "keys x stride expected"
        )
    if given is not None and given.numel() == num_bags + 1:
        offsets = given if given.dtype == torch.int64 else given.to(torch.int64)
    elif torch.compiler.is_exporting():
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int64)
    else:
        offsets = torch.zeros(num_bags + 1, dtype=torch.int64, device=features.values().device)
        if lengths is not None and num_bags:
            torch.cumsum(lengths, 0, out=offsets[1:])
    offsets = offsets.contiguous()
    if torch.compiler.is_exporting():  # there are no numbers yet: the program checks them
        num_ids = features.values().numel()
        return stride, torch.ops.grace.checked_offsets(offsets, lengths, num_ids), num_ids
    return stride, offsets, _check_offsets(offsets, lengths)


def _check_offsets(offsets: Tensor, lengths: Tensor | None) -> int:
    """Refuse int64 offsets that no sequence of bags has, or that contradict the lengths.

    Returns:
        The last offset.
    """
    bounds = offsets.numpy()  # reading one number of a tensor takes 2 us
    bag = first_misfit(bounds, bounds[:0] if lengths is None else lengths.numpy())
    if bag >= 0 and lengths is not None and lengths[bag] < 0:
        raise GraceError(
            f"batch has a length below 0 ({int(lengths[bag])}) at bag {bag}; "
            "give each bag a length of 0 or more"
        )
    if bag >= 0 and offsets[bag] <= offsets[bag + 1]:
        raise GraceError(
            f"batch has offsets {int(offsets[bag])} to {int(offsets[bag + 1])} at bag {bag}, "
            f"its length is {int(lengths[bag])}; pass lengths or offsets, not two that differ"  # type: ignore[index]
        )
    if bag >= 0 or int(bounds[0]) != 0:
        where = (
            f"fall at bag {bag} from {int(offsets[bag])} to {int(offsets[bag + 1])}"
            if bag >= 0
            else "do not start at 0"
        )
        raise GraceError(f"batch offsets {where}; they must start at 0 and never decrease")
    return int(bounds[-1])


def _weights(features: KeyedJaggedTensor, is_weighted: bool, strict: bool) -> Tensor | None:
    """Return the weights the collection uses; ignored ones are said once, or refused."""
    weights: Tensor | None = features.weights_or_none()
    if not is_weighted:
        if weights is not None:
            message = (
                "batch carries weights, the collection is not weighted: they are ignored, "
                "as an unsharded EmbeddingBagCollection does (a sharded one applies them)"
            )
            if strict:
                raise NotSupported(f"{message}; drop the weights or build it with is_weighted=True")
            if "ignored weights" not in _warned:
                _warned.add("ignored weights")
                logger.warning(message)
        return None
    if weights is None:
        raise GraceError("batch has no weights, the collection is weighted; pass weights")
    if weights.shape != features.values().shape:
        raise GraceError(
            f"batch has weights of shape {tuple(weights.shape)} for ids of shape "
            f"{tuple(features.values().shape)}; one for each id expected"
        )
    return weights.to(torch.float32).contiguous()


def _checked_offsets_op(offsets: Tensor, lengths: Tensor | None, num_ids: int) -> Tensor:
    """Check the offsets of an exported program's batch, and return them."""
    last = _check_offsets(offsets, lengths)
    if last != num_ids:
        raise GraceError(f"batch lengths add up to {last}, there are {num_ids} ids")
    return offsets.clone()


_LIBRARY = library.Library("grace", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "checked_offsets(Tensor offsets, Tensor? lengths, int num_ids) -> Tensor"
_LIBRARY.define(_SCHEMA)  # type: ignore[no-untyped-call]
_LIBRARY.impl("checked_offsets", _checked_offsets_op, "CPU")  # type: ignore[no-untyped-call]
library.register_fake(
    "grace::checked_offsets", lambda offsets, lengths, num_ids: offsets.clone(), lib=_LIBRARY
)
