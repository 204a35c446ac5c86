"""Traces as files of arrays: pieces that wait on disk, and a whole that is mapped.

Flow: pieces of shards -> *save_arrays*, *load_arrays* -> *join_on_disk* -> Trace larger than memory.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import check_alike, merged_note
from grace_torchrec.traces.trace import Trace

_ARRAYS = ("offsets_B1", "ids_L", "weights_L", "time_B", "split_L")


def save_arrays(trace: Trace, folder: str) -> str:
    """Write the arrays of a trace into a new folder, each as an .npy file."""
    Path(folder).mkdir()
    for name in _ARRAYS:
        if getattr(trace, name) is not None:
            np.save(f"{folder}/{name}.npy", getattr(trace, name))
    np.save(f"{folder}/num_items.npy", np.array(trace.num_items))
    Path(folder, "note").write_text(trace.note, encoding="utf-8")
    return folder


def load_arrays(folder: str) -> Trace:
    """Read what ``save_arrays`` wrote and remove it."""
    arrays = {file.stem: np.load(file) for file in Path(folder).glob("*.npy")}
    note = Path(folder, "note").read_text(encoding="utf-8")
    shutil.rmtree(folder)
    return Trace(
        arrays["offsets_B1"],
        arrays["ids_L"],
        int(arrays["num_items"]),
        weights_L=arrays.get("weights_L"),
        time_B=arrays.get("time_B"),
        split_L=arrays.get("split_L"),
        note=note,
    )


def join_on_disk(traces: Iterator[Trace], folder: Path, spool: str) -> Trace:
    """Join all traces in files of ``folder`` and map them; one piece at a time is in memory."""
    pieces, kinds, sizes, largest = [], [], [], -1
    for number, trace in enumerate(traces):
        pieces.append(save_arrays(trace, f"{spool}/kept.{number}"))
        kinds.append(trace.take(np.zeros(0, np.int64)))  # no bags, but types, items and note
        sizes.append((trace.num_bags, trace.num_ids))
        largest = max(largest, int(trace.ids_L.max(initial=-1)))
    check_alike(kinds)
    num_bags, num_ids = np.sum(sizes, axis=0).tolist()
    offsets = np.zeros(num_bags + 1, np.int64)
    joined = {
        name: _new_file(
            folder / f"{name}.npy",
            _type(name, kinds, largest),
            num_bags if name == "time_B" else num_ids,
        )
        for name in _ARRAYS[1:]
        if getattr(kinds[0], name) is not None
    }
    bag, place = 0, 0
    for piece in pieces:
        trace = load_arrays(piece)
        offsets[bag + 1 : bag + 1 + trace.num_bags] = trace.offsets_B1[1:] + place
        for name, array in joined.items():
            first = bag if name == "time_B" else place
            part = getattr(trace, name)
            array[first : first + part.size] = part
        bag, place = bag + trace.num_bags, place + trace.num_ids
    return Trace(
        offsets,
        joined["ids_L"],
        max(kind.num_items for kind in kinds),
        weights_L=joined.get("weights_L"),
        time_B=joined.get("time_B"),
        split_L=joined.get("split_L"),
        note=merged_note(kinds),
    )


def _new_file(path: Path, dtype: np.dtype[Any], size: int) -> npt.NDArray[Any]:
    """Make a file of numbers and map it; one that is there may be mapped by another trace."""
    if path.exists():
        raise GraceError(f"{path}: exists already; give an empty folder for each trace")
    if not size:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    mapped: npt.NDArray[Any] = np.lib.format.open_memmap(path, "w+", dtype, (size,))
    return mapped


def _type(name: str, kinds: list[Trace], largest: int) -> np.dtype[Any]:
    """Return the type of the joined array, the one that concatenating in memory gives."""
    if name == "ids_L":
        return np.dtype(np.int32 if largest < 2**31 else np.int64)
    return np.result_type(*(getattr(kind, name) for kind in kinds))
