"""Joining: several requests become one batch, and its output the answers of each.

Flow: requests of equal kind -> *join* -> model -> output, and where its rows are
(:mod:`grace_torchrec.serve.row_dims`) -> *split* -> answers in the same order.
Bags are joined row-wise: ``KeyedJaggedTensor.concat`` joins features.
Shapes: R requests, F features, B rows of all requests, B_r of request r, L ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.containers import remade
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows


class CannotSplit(Exception):
    """An output in which no request has rows of its own: such requests run one by one."""


def join(batches: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return one batch with the rows of all requests, in order.

    Args:
        batches: Positional arguments of each request, all of the same kind
            (:func:`~grace_torchrec.serve.request_form.form_of`).

    Raises:
        GraceError: lengths of a request do not fit its ids any more.
    """
    if len(batches) == 1:
        return batches[0]
    with torch.no_grad():  # one request that wants gradients must not make the others want them
        return tuple(_join_part(parts) for parts in zip(*batches, strict=True))


def split(output: Any, rows_R: Sequence[int], dims: Iterable[int]) -> list[Any]:
    """Return the part of each request in a model's output.

    Args:
        output: Tensors and KeyedTensors, in dicts, lists and tuples.
        rows_R: Rows of each request; their sum is B.
        dims: Dimension of each tensor that has the B rows
            (:meth:`~grace_torchrec.serve.row_dims.RowDims.of`).
    """
    return _split(output, list(rows_R), iter(dims))


def _split(output: Any, rows_R: list[int], dims: Iterator[int]) -> list[Any]:
    """Split one part, and take the dimensions of its tensors."""
    if isinstance(output, Tensor):
        dim = next(dims)
        parts = torch.split(output, rows_R, dim)
        if dim and output.is_contiguous():  # as it is for a request alone
            return [part.contiguous() for part in parts]
        return list(parts)
    if isinstance(output, KeyedTensor):
        keys, lengths, key_dim = output.keys(), output.length_per_key(), output.key_dim()
        columns = _split(output.values(), rows_R, dims)
        return [KeyedTensor(keys, lengths, values, key_dim) for values in columns]
    if isinstance(output, dict | list | tuple):
        inner = output.values() if isinstance(output, dict) else output
        parts_of_each = [_split(value, rows_R, dims) for value in inner]
        return [remade(output, parts) for parts in _of_each(parts_of_each, len(rows_R))]
    assert output is None
    return [None] * len(rows_R)


def original_bags(batch: Any) -> list[KeyedJaggedTensor]:
    """Return every KeyedJaggedTensor in nested arguments; of rewritten bags the original ones."""
    if isinstance(batch, RewrittenBatch):
        return [batch.bags]
    if isinstance(batch, KeyedJaggedTensor):
        return [batch]
    if isinstance(batch, Mapping | list | tuple):
        inner = batch.values() if isinstance(batch, Mapping) else batch
        return [bags for part in inner for bags in original_bags(part)]
    return []


def _of_each(columns: list[list[Any]], count: int) -> list[tuple[Any, ...]]:
    """Return the parts of each request; also where there are no columns."""
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _join_part(parts: tuple[Any, ...]) -> Any:
    """Join one argument of every request."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, RewrittenBatch):
        return _join_rewritten(parts)
    if isinstance(first, KeyedJaggedTensor):
        return join_bags(parts)
    if isinstance(first, dict):
        return remade(first, [_join_part(tuple(part[key] for part in parts)) for key in first])
    if isinstance(first, list | tuple):
        return remade(first, [_join_part(column) for column in zip(*parts, strict=True)])
    return first  # equal in all of them


def join_bags(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    """Return the bags of all requests, feature by feature.

    Args:
        parts: Bags of each request, with the same keys, one or more.
    """
    keys = parts[0].keys()
    columns = [[part.values() for part in parts]]
    if parts[0].weights_or_none() is not None:
        columns.append([part.weights() for part in parts])
    lengths = [part.lengths().reshape(-1) for part in parts]
    lengths_FB, (values, *weights) = join_jagged(len(keys), lengths, columns)
    return KeyedJaggedTensor(
        keys=keys,
        values=values,
        weights=weights[0] if weights else None,
        lengths=lengths_FB,
        stride=lengths_FB.numel() // len(keys),
    )


def _join_rewritten(parts: Sequence[RewrittenBatch]) -> RewrittenBatch:
    """Join bags and the rows they read; their stamps are equal."""
    modules: dict[str, RewrittenRows] = {}
    for path, first in parts[0].modules.items():
        rows = [part.modules[path] for part in parts]
        columns = [[part.rows for part in rows]]
        if first.weights is not None:
            columns.append([part.weights for part in rows if part.weights is not None])
        num_features = first.given_lengths.shape[0]
        lengths, (values, *weights) = join_jagged(
            num_features, [part.offsets.diff() for part in rows], columns
        )
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        modules[path] = RewrittenRows(
            values,
            offsets,
            weights[0] if weights else None,
            torch.cat([part.given_lengths for part in rows], dim=1),
            torch.stack([part.reads for part in rows]).sum(0),
            first.stamp,
        )
    return RewrittenBatch(join_bags([part.bags for part in parts]), modules)


def join_jagged(
    num_features: int, lengths_R: Sequence[Tensor], columns: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """Join jagged values that are ordered by feature, then row.

    Args:
        num_features: F, one or more.
        lengths_R: ``[F * B_r]`` of each request.
        columns: Values with those lengths, ``[L_r]`` of each request; one or more columns.

    Returns:
        Lengths ``[F * B]``, and each column joined.

    Raises:
        GraceError: on a CPU, lengths do not fit their values: bags of others would move.
    """
    if lengths_R[0].device.type != "cpu":
        return _join_on_device(num_features, lengths_R, columns)
    lengths = [one.numpy().reshape(num_features, -1) for one in lengths_R]
    lengths_FB = np.concatenate(lengths, axis=1).reshape(-1)
    ends = [one.sum(axis=1).cumsum().tolist() for one in lengths]
    joined = []
    for column in columns:
        values = [part.detach().numpy() for part in column]
        fits = all(end[-1] == part.size for part, end in zip(values, ends, strict=True))
        if not fits or lengths_FB.min(initial=0) < 0:
            raise GraceError(
                "request: lengths of bags do not fit their ids any more, as they did when it was "
                "submitted; write into a request only after its answer"
            )
        pieces = [
            part[end[f - 1] if f else 0 : end[f]]
            for f in range(num_features)
            for part, end in zip(values, ends, strict=True)
        ]
        joined.append(torch.from_numpy(np.concatenate(pieces)))
    return torch.from_numpy(lengths_FB), joined


def _join_on_device(
    num_features: int, lengths_R: Sequence[Tensor], columns: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """Join without waiting for the device: segments (feature, request) change places there."""
    device, num_requests = lengths_R[0].device, len(lengths_R)
    rows = np.cumsum([0, *(one.numel() // num_features for one in lengths_R)])
    lengths_FB = torch.cat([one.reshape(num_features, -1) for one in lengths_R], dim=1).reshape(-1)
    ends = torch.zeros(lengths_FB.numel() + 1, dtype=torch.int64, device=device)
    torch.cumsum(lengths_FB, 0, out=ends[1:])
    at = torch.from_numpy(np.arange(num_features)[:, None] * rows[-1] + rows).to(device)
    segments_RF = ends[at].diff(dim=1).t().contiguous().reshape(-1)
    order = np.arange(num_requests * num_features).reshape(num_requests, num_features).T
    permute = torch.from_numpy(np.ascontiguousarray(order.reshape(-1)).astype(np.int32)).to(device)
    joined = []
    for column in columns:
        values = torch.cat(list(column))
        _, moved, _ = torch.ops.fbgemm.permute_1D_sparse_data(
            permute, segments_RF, values, None, values.numel()
        )
        joined.append(moved)
    return lengths_FB, joined
