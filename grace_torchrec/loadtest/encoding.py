"""Encoding: requests as bytes and back, so that two processes share them without copies on a wire.

Flow: arguments of a request -> *encode* -> bytes in shared memory -> *Decoder* -> arguments.
All requests of a load test are of one kind, so the bytes hold shapes and numbers only.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.arguments import told
from grace_torchrec.containers import remade
from grace_torchrec.errors import NotSupported

ALIGNMENT = 8
Array = npt.NDArray[Any]


def encode(batch: tuple[Any, ...]) -> bytes:
    """Return a request as bytes: all shapes as int64, then the numbers of each array, aligned.

    Args:
        batch: Tensors and bags on the CPU, in tuples, lists and dicts.

    Raises:
        NotSupported: it holds something else.
    """
    arrays = list(_arrays(batch))
    parts = [np.array([n for array in arrays for n in array.shape], np.int64).tobytes()]
    for array in arrays:
        data = array.tobytes()
        parts.append(data + bytes(-len(data) % ALIGNMENT))
    return b"".join(parts)


class Decoder:
    """Turns bytes back into requests.

    Args:
        example: A request of the kind that was encoded.
    """

    def __init__(self, example: tuple[Any, ...]) -> None:
        self.example = example
        arrays = list(_arrays(example))
        self.kinds = [(array.dtype, array.ndim) for array in arrays]
        self.num_sizes = sum(array.ndim for array in arrays)

    def __call__(self, buffer: Any, at: int) -> tuple[Any, ...]:
        """Return the request whose bytes begin at ``at``; it has memory of its own."""
        sizes = np.frombuffer(buffer, np.int64, self.num_sizes, at).tolist()
        at += 8 * self.num_sizes
        arrays, first = [], 0
        for dtype, ndim in self.kinds:
            shape = sizes[first : first + ndim]
            first += ndim
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(buffer, dtype, count, at).reshape(shape).copy())
            at += -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        request: tuple[Any, ...] = _rebuilt(self.example, iter(arrays))
        return request


def flat_answer(output: Any) -> npt.NDArray[np.float32]:
    """Return all numbers of an answer in a fixed order.

    Args:
        output: Tensors and KeyedTensors in dicts, lists and tuples.
    """
    if isinstance(output, Tensor):
        return output.detach().float().reshape(-1).numpy()
    if isinstance(output, KeyedTensor):
        return flat_answer(output.values())
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return np.concatenate([np.zeros(0, np.float32), *map(flat_answer, output)])
    return np.zeros(0, np.float32)


def _arrays(value: Any) -> Iterator[Array]:
    """Yield the arrays of a request in a fixed order."""
    if isinstance(value, Tensor):
        yield value.detach().numpy()
    elif isinstance(value, KeyedJaggedTensor):
        yield value.values().numpy()
        yield value.lengths().numpy()
        if value.weights_or_none() is not None:
            yield value.weights().numpy()
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _arrays(part)
    elif value is not None:
        raise NotSupported(f"load test: requests hold {told(value)}; tensors and bags only")


def _rebuilt(value: Any, arrays: Iterator[Array]) -> Any:
    """Return a request like ``value`` from its arrays."""
    if isinstance(value, Tensor):
        return torch.from_numpy(next(arrays))
    if isinstance(value, KeyedJaggedTensor):
        ids, lengths = torch.from_numpy(next(arrays)), torch.from_numpy(next(arrays))
        weights = None if value.weights_or_none() is None else torch.from_numpy(next(arrays))
        return KeyedJaggedTensor(value.keys(), ids, weights, lengths)
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return remade(value, [_rebuilt(part, arrays) for part in inner])
    return value
