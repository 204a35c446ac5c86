"""Mapped arrays: tensors in a safetensors file, written without a copy and mapped when read.

Flow: save_served -> *write_arrays* -> file -> *read_arrays* -> load_served.  Tables are too large to
be held twice, and a restart should not wait for them: what is read is mapped privately, so writes
to it stay in this process.  A checksum of all bytes is verified at memory speed.
Source: the safetensors format (header length, JSON header, bytes).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grace_torchrec.errors import GraceError
from grace_torchrec.strict_files import check_header, plain_file

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ITEM_BYTES = {name: kind.itemsize for kind, name in TYPES.items()}
ALIGNMENT = 64  # the bytes of the first array begin at a multiple of a cache line
WHOLE = 1 << 62  # divides an array of no bytes
WORDS = 1 << 16
STEP = np.uint64(6364136223846793005)


def write_arrays(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors one after the other; return their checksum.

    The format allows no gaps.  So those whose bytes are a multiple of a larger power of two come
    first, and each begins at a multiple of the one that divides its own bytes (up to 64): its
    numbers are aligned, also where a byte array holds rows of wider numbers.

    Raises:
        GraceError: a tensor has a type that files do not hold, or is no plain array; names it.
    """
    for name, tensor in tensors.items():
        plain = tensor.layout is torch.strided and not tensor.is_nested
        if not plain or tensor.dtype not in TYPES:
            what = tensor.dtype if plain else f"not a plain array ({tensor.layout})"
            raise GraceError(f"save: {name!r} is {what}; files hold {sorted(TYPES.values())}")
    header: dict[str, dict[str, object]] = {}
    end = 0
    in_order = sorted(tensors.items(), key=lambda item: -_power_of_two(item[1].nbytes))
    for name, tensor in in_order:
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in in_order:
            file.write(memoryview(_bytes_of(tensor)))  # type: ignore[arg-type]
    return checksum(tensors)


def read_arrays(path: Path, expected: object, name: str) -> dict[str, Tensor]:
    """Map the tensors of a file and verify their checksum.

    Args:
        path: The file.
        expected: Checksum that :func:`write_arrays` returned.
        name: What the file belongs to, for messages.

    Raises:
        GraceError: the file is missing, truncated, not valid, or was changed after writing.
    """
    size = plain_file(path, name)
    try:
        check_header(path, size, ITEM_BYTES)
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise GraceError(f"{path}: not readable ({error}); write the {name} again") from error
    if checksum(tensors) != expected:
        raise GraceError(f"{path}: does not match its checksum; write the {name} again")
    return tensors


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return a 64-bit checksum over names, types, shapes and bytes, independent of their order.

    It tells damage, not malice: every byte counts with a weight of its place.
    """
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for name, tensor in tensors.items():
            told = f"{name} {TYPES[tensor.dtype]} {list(tensor.shape)}".encode()
            head = np.frombuffer(told + b" " * (-len(told) % 8), np.uint64)
            total += _folded([head, *_words(_bytes_of(tensor))])
    return f"{int(total):016x}"


def _folded(parts: list[npt.NDArray[np.uint64]]) -> np.uint64:
    """Fold words into one number; the caller lets it overflow."""
    places = np.arange(1, 2 * WORDS, 2, dtype=np.uint64)
    product = np.empty(WORDS, np.uint64)
    found: np.uint64 = np.uint64(1469598103934665603)
    for part in parts:
        for first in range(0, part.size, WORDS):
            words = part[first : first + WORDS]
            np.multiply(words, places[: words.size], out=product[: words.size])
            found = found * STEP + product[: words.size].sum(dtype=np.uint64)
    return found


def _words(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield bytes as 64-bit words, the rest filled up with zeros."""
    whole = data.size // 8 * 8
    yield data[:whole].view(np.uint64)
    rest = np.zeros(8, np.uint8)
    rest[: data.size - whole] = data[whole:]
    yield rest.view(np.uint64)


def _power_of_two(num_bytes: int) -> int:
    """Return the largest power of two that divides a number."""
    return num_bytes & -num_bytes or WHOLE


def _bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a tensor, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() < 2:  # one number may have any stride
        flat = flat.new_empty(flat.numel()).copy_(flat)
    array: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array
