"""Batches of TorchRec: the bags of a KeyedJaggedTensor, read without importing torchrec.

Flow: a loader's batches -> *from_kjts* -> Trace.  Works by duck typing on ``keys()``,
``values()``, ``lengths()``, ``weights_or_none()`` and ``stride()``.
Shapes of one batch: F features, B samples, lengths ``[F * B]`` feature by feature, L values.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.arguments import told
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.traces.trace import Trace

PADDING = -1
_Vector = npt.NDArray[Any]


def from_kjts(batches: Iterable[Any], features: str | Sequence[str], num_items: int = 0) -> Trace:
    """Collect the bags of one table from batches of KeyedJaggedTensor.

    Padding rule: a value -1 is padding. It is dropped with its weight, inside a bag and behind
    the last bag alike, and is not counted among the ids of the bag (which may become empty).

    Args:
        batches: KeyedJaggedTensors, read one by one; tensors may be on any device.
        features: The feature, or all features, that read the table; bags come batch by batch,
            within a batch feature by feature, within a feature sample by sample.
        num_items: Rows of the table; 0 means largest id + 1, which cannot catch ids that are
            outside the table.

    Raises:
        GraceError: no batches, an unknown feature, lengths that do not fit the values, negative
            ids other than -1, ids outside the table, or weights in some batches only.
        NotSupported: a batch has a batch size of its own for each feature (VBE).
    """
    names = [features] if isinstance(features, str) else list(features)
    if not names or len(set(names)) != len(names):
        raise GraceError(f"from_kjts: features are {names}; give each feature of the table once")
    lengths: list[_Vector] = []
    ids: list[_Vector] = []
    weights: list[_Vector | None] = []
    for number, batch in enumerate(batches):
        for name, part in _features(batch, names, f"batch {number}"):
            where = f"batch {number}: feature {name!r}"
            _append(part, where, num_items, lengths, ids, weights)
    if not lengths:
        raise GraceError("from_kjts: there are no batches; give at least one KeyedJaggedTensor")
    if len({part is None for part in weights}) > 1:
        raise GraceError("from_kjts: some batches carry weights and others do not; give one kind")
    offsets = np.zeros(sum(part.size for part in lengths) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    kept = [part for part in weights if part is not None]
    return Trace(offsets, np.concatenate(ids), num_items, np.concatenate(kept) if kept else None)


def _features(
    batch: Any, names: list[str], where: str
) -> list[tuple[str, tuple[_Vector, _Vector, _Vector | None]]]:
    """Return (name, (lengths ``[B]``, values, weights)) of the wanted features of one batch."""
    if not all(
        hasattr(batch, method)
        for method in ("keys", "values", "lengths", "weights_or_none", "stride")
    ):
        raise GraceError(f"{where}: is {told(batch)}, a KeyedJaggedTensor is expected")
    is_vbe = getattr(batch, "variable_stride_per_key", None)
    if is_vbe is not None and is_vbe():
        raise NotSupported(
            f"{where}: has a batch size for each feature (VBE); expand it to one batch size first"
        )
    keys = list(batch.keys())
    lengths, values = _vector(batch.lengths()), _vector(batch.values())
    weights = None if batch.weights_or_none() is None else _vector(batch.weights_or_none())
    _check_batch(where, keys, int(batch.stride()), lengths, values, weights)
    lengths_FB = lengths.astype(np.int64).reshape(len(keys), -1)
    ends = np.cumsum(lengths_FB.sum(1))
    parts = []
    for name in names:
        if name not in keys:
            raise GraceError(f"{where}: has no feature {name!r}; it has {keys}")
        feature = keys.index(name)
        piece = slice(int(ends[feature - 1]) if feature else 0, int(ends[feature]))
        parts.append(
            (
                name,
                (lengths_FB[feature], values[piece], None if weights is None else weights[piece]),
            )
        )
    return parts


def _check_batch(
    where: str,
    keys: list[str],
    stride: int,
    lengths: _Vector,
    values: _Vector,
    weights: _Vector | None,
) -> None:
    """Check once that lengths, values and weights of a batch fit together."""
    if values.dtype.kind not in "iu" or lengths.dtype.kind not in "iu":
        raise GraceError(
            f"{where}: values have type {values.dtype} and lengths {lengths.dtype}; both must be integers"
        )
    if lengths.size != len(keys) * stride or (lengths.size and int(lengths.min()) < 0):
        raise GraceError(
            f"{where}: expected {len(keys)} x {stride} lengths that are not negative, got {lengths.size}"
        )
    total = int(lengths.sum())
    if total > values.size or (values[total:] != PADDING).any():
        raise GraceError(
            f"{where}: lengths add up to {total}, there are {values.size} values; they must agree"
        )
    if weights is not None and weights.size != values.size:
        raise GraceError(
            f"{where}: has {weights.size} weights for {values.size} values; they must agree"
        )


def _append(
    part: tuple[_Vector, _Vector, _Vector | None],
    where: str,
    num_items: int,
    lengths: list[_Vector],
    ids: list[_Vector],
    weights: list[_Vector | None],
) -> None:
    """Add the bags of one feature of one batch, padding dropped."""
    length_B, values, weight = part
    if values.size and int(values.min()) < PADDING:
        raise GraceError(
            f"{where}: {_sample(length_B, values < PADDING)} holds id {int(values.min())}, which is "
            "negative; only -1 (padding) may be"
        )
    if num_items and values.size and int(values.max()) >= num_items:
        raise GraceError(
            f"{where}: {_sample(length_B, values >= num_items)} holds id "
            f"{int(values[np.argmax(values >= num_items)])}, the table has {num_items} rows; fix the "
            f"ids, or leave them out (-1 is padding)"
        )
    real = values != PADDING
    if not real.all():
        bag = np.repeat(np.arange(length_B.size), length_B)
        length_B = np.bincount(bag[real], minlength=length_B.size)
        values, weight = values[real], None if weight is None else weight[real]
    lengths.append(length_B)
    ids.append(values)
    weights.append(weight)


def _sample(length_B: _Vector, is_bad_L: _Vector) -> str:
    """Name the bag of the first bad value."""
    ends = np.cumsum(length_B)
    return f"sample {int(np.searchsorted(ends, int(np.argmax(is_bad_L)), side='right'))}"


def _vector(tensor: Any) -> _Vector:
    """Return a flat numpy copy or view of a tensor on any device."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
    return np.asarray(tensor).reshape(-1)
