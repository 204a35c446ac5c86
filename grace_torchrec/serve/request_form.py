"""Form of a request: how many rows it has, and which requests it may share a batch with.

Flow: arguments of one request -> *form_of* -> queue, which joins requests of equal kind.
What is cheap to check is checked here, at the door.  What is malformed in another way than its
numbers (a missing key, another type) is of another kind, so it meets no other request.  What is
joined takes on no property of its mates: of tensors that are not plain, of values and containers of
types that are not known, a joined one may.
Shapes: F features, B rows of the request, L ids.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.containers import is_known, remade
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows


@dataclass(frozen=True, slots=True)
class Form:
    """What the queue knows of a request.

    Attributes:
        rows: Rows; 0 is an empty request.
        kind: Requests of equal kind may be joined.
    """

    rows: int
    kind: Hashable

    @property
    def is_alone(self) -> bool:
        """Whether the request is never joined, not even with a blank row."""
        return isinstance(self.kind, Alone)


class Alone:
    """A kind that equals no other."""


def form_of(batch: tuple[Any, ...]) -> Form:
    """Return the form of a request.

    Args:
        batch: Positional arguments of the model: tensors with a row for each row of the request,
            bags, numbers and texts, in tuples, lists or dicts.  Anything else is computed alone,
            as it is.

    Raises:
        GraceError: rows of two arguments differ, or lengths of bags do not fit their ids.
    """
    rows: dict[str, int] = {}
    kind = tuple(_kind(part, f"argument {place}", rows) for place, part in enumerate(batch))
    if not rows:
        return Form(1, Alone())
    (first, count), *others = rows.items()
    for where, number in others:
        if number != count:
            raise GraceError(
                f"request: {first} has {count} rows, {where} has {number}; "
                "give each argument one row for each row of the request"
            )
    return Form(count, Alone() if _holds_alone(kind) else kind)


def _kind(value: Any, where: str, rows: dict[str, int]) -> Hashable:
    """Return what must be equal for a value to be joined with another; note its rows."""
    if isinstance(value, Tensor):
        if not _is_plain(value):
            return Alone()
        rows[where] = value.shape[0]
        return value.dtype, tuple(value.shape[1:]), value.device
    if isinstance(value, RewrittenBatch):
        stamps = tuple((path, part.stamp) for path, part in value.modules.items())
        weighted = tuple(part.weights is not None for part in value.modules.values())
        for path, part in value.modules.items():
            _check_rewritten(part, f"{where} rewritten for {path!r}", rows)
        return stamps, weighted, _kind_of_bags(value.bags, where, rows)
    if isinstance(value, KeyedJaggedTensor):
        return _kind_of_bags(value, where, rows)
    if isinstance(value, dict | list | tuple):
        return _kind_of_container(value, where, rows)
    if type(value) is float:
        return float, value.hex()  # 0.0 equals -0.0, and is another number
    if value is None or type(value) in (bool, int, str):
        return type(value), value
    return Alone()


def _kind_of_container(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...], where: str, rows: dict[str, int]
) -> Hashable:
    """Return the kind of a container: its type, keys and parts."""
    keys: tuple[Any, ...] = tuple(value) if isinstance(value, dict) else ()
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    kinds = tuple(_kind(part, f"{where}[{key!r}]", rows) for key, part in parts)
    if not is_known(value):
        return Alone()  # what else it knows would be lost, or its mates'
    if type(value) is defaultdict:
        factory = value.default_factory
        return defaultdict, factory if isinstance(factory, Hashable) else Alone(), keys, kinds
    return type(value), keys, kinds


def _holds_alone(kind: Hashable) -> bool:
    """Tell a kind with a part that equals no other."""
    return isinstance(kind, Alone) or (isinstance(kind, tuple) and any(map(_holds_alone, kind)))


def _is_plain(value: Tensor) -> bool:
    """Tell a tensor with rows that a joined one holds as they are."""
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and not (value.is_nested or value.is_quantized)
        and value.dim() > 0
    )


def _kind_of_bags(bags: KeyedJaggedTensor, where: str, rows: dict[str, int]) -> Hashable:
    """Return the kind of bags; refuse lengths that do not fit."""
    keys, offsets = bags.keys(), bags.offsets_or_none()
    varies = bags.variable_stride_per_key() or bags.inverse_indices_or_none() is not None
    if varies or not keys or (offsets is None and bags.lengths_or_none() is None):
        return Alone()
    ids, weights = bags.values(), bags.weights_or_none()
    lengths = bags.lengths().reshape(-1)
    stride = lengths.numel() // len(keys)
    if ids.dim() != 1 or lengths.numel() != stride * len(keys) or stride != bags.stride():
        raise GraceError(
            f"request: {where} has {lengths.numel()} lengths for {len(keys)} features of stride "
            f"{bags.stride()}, ids of shape {tuple(ids.shape)}; keys x stride lengths are expected"
        )
    if lengths.device.type == "cpu":  # elsewhere it would wait for the device
        _check_lengths(lengths, ids.numel(), where)
        if offsets is not None:
            _check_offsets(offsets, lengths, where)
    if weights is not None and weights.shape != ids.shape:
        raise GraceError(
            f"request: {where} has weights of shape {tuple(weights.shape)} for {ids.numel()} ids"
        )
    rows[where] = stride
    return (
        tuple(keys), ids.dtype, lengths.dtype, ids.device,
        None if weights is None else weights.dtype,
    )  # fmt: skip


def _check_lengths(lengths: Tensor, num_ids: int, where: str) -> None:
    """Refuse lengths that are negative or do not add up to the ids."""
    numbers = lengths.detach().numpy()
    if numbers.size and int(numbers.min()) < 0:
        raise GraceError(
            f"request: {where} has a length below 0 ({int(numbers.min())}) at bag "
            f"{int(numbers.argmin())}; give each bag a length of 0 or more"
        )
    total = int(numbers.sum())
    if total != num_ids:
        raise GraceError(
            f"request: {where} has lengths that add up to {total}, there are {num_ids} ids; "
            "give each bag the number of its ids"
            if numbers.size
            else f"request: {where} has {num_ids} ids and no bag"
        )


def _check_offsets(offsets: Tensor, lengths: Tensor, where: str) -> None:
    """Refuse offsets that are not the sums of the lengths: whatever reads them reads other ids."""
    ends, numbers = offsets.detach().numpy(), lengths.detach().numpy()
    if ends.size and ends[0]:
        raise GraceError(f"request: {where} has offsets that begin at {ends[0]}, not 0")
    if ends.size != numbers.size + 1 or not np.array_equal(np.diff(ends), numbers):
        raise GraceError(f"request: {where} has offsets and lengths that say different bags")


def _check_rewritten(part: RewrittenRows, where: str, rows: dict[str, int]) -> None:
    """Refuse rewritten rows that do not fit their bags; note for how many rows they are."""
    num_bags, ends = part.given_lengths.numel(), part.offsets
    weighted = part.rows if part.weights is None else part.weights
    if part.given_lengths.dim() != 2 or ends.shape != (num_bags + 1,):
        raise GraceError(f"request: {where} has {ends.numel()} offsets for {num_bags} bags")
    if part.rows.dim() != 1 or weighted.shape != part.rows.shape:
        raise GraceError(f"request: {where} has weights that do not fit its rows")
    if ends.device.type == "cpu":
        if int(ends[0]):
            raise GraceError(f"request: {where} has offsets that begin at {int(ends[0])}, not 0")
        _check_lengths(ends.diff(), part.rows.numel(), where)
    rows[where] = part.given_lengths.shape[1]


def blank_row(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a request of the same kind with one row: zeros and empty bags.

    It stands in for empty requests: not every model takes a batch without rows.

    Args:
        batch: A request that may be joined.
    """
    return tuple(_blank(part) for part in batch)


def _blank(value: Any) -> Any:
    """Return one row of the kind of a value."""
    if isinstance(value, Tensor):
        return value.new_zeros((1, *value.shape[1:]))
    bags = value.bags if isinstance(value, RewrittenBatch) else value
    if isinstance(bags, KeyedJaggedTensor):
        weights = bags.weights_or_none()
        return KeyedJaggedTensor(
            keys=bags.keys(),
            values=bags.values().new_empty(0),
            weights=None if weights is None else weights.new_empty(0),
            lengths=bags.lengths().new_zeros(len(bags.keys())),
            stride=1,
        )
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return remade(value, [_blank(part) for part in inner])
    return value
