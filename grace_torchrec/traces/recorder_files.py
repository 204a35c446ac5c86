"""Recorder files: the sample of a recorder as a profile folder, with what it takes to go on.

Flow: recorder -> *supported* (rare items leave) -> *save_held* -> ``Profile.load``, *load_held*.
The folder is a profile like any other.  Beside the arrays of a table stand the keys of its bags, and
in the document how many bags were seen; times of bags are not written.
Shapes: B bags, L ids, A items that bags ask for.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.traces.live_batches import LiveTable
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.reservoir import Entry, SampledBag
from grace_torchrec.traces.trace import Trace

STATE, HALF_LIVES = "recorder", "recorder_half_lives"  # of the document
NUMBERS = ("bags_seen", "limit", "base")


class HalfLives(NamedTuple):
    """What the keys of a sample are scaled by; without either, all bags weigh the same.

    Attributes:
        bags: Of a table; or None.
        seconds: The same by time; or None.
    """

    bags: float | None
    seconds: float | None


class Held(NamedTuple):
    """The sample of one table.

    Attributes:
        profile: Its bags.
        entries: The same with their keys, in the same order; ids that were left out are in them.
        bags_seen: Bags that passed.
        limit: Keys below it are held.
        base: See ``Reservoir``.
    """

    profile: TableProfile
    entries: Sequence[Entry]
    bags_seen: int
    limit: float
    base: float


def trace_of(entries: Sequence[Entry], table: LiveTable) -> Trace:
    """Return the bags of these entries, in their order."""
    bags = [entry.bag for entry in entries]
    offsets = np.zeros(len(bags) + 1, np.int64)
    np.cumsum([bag.ids.size for bag in bags], out=offsets[1:])
    ids = np.concatenate([bag.ids for bag in bags]) if bags else np.zeros(0, np.int32)
    weights: npt.NDArray[np.float32] | None = None
    if table.is_weighted:
        parts = [bag.weights for bag in bags if bag.weights is not None]
        weights = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return Trace(offsets, ids, table.num_rows, weights)


def supported(trace: Trace, min_support: int) -> tuple[Trace, npt.NDArray[np.int64]]:
    """Leave out items that are in fewer than ``min_support`` bags, and bags that hold no other.

    Returns:
        What is left, with a note of what is not, and which bags that are.

    >>> supported(Trace.from_bags([[1, 2], [2, 2, 3], [4]]), 2)[0].ids_L.tolist()
    [2, 2, 2]
    """
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    items_A, number_L = np.unique(trace.ids_L, return_inverse=True)  # a table has many more
    each = np.unique(bag_L * items_A.size + number_L)  # a bag counts once for an item
    support_A = np.bincount(each % max(items_A.size, 1), minlength=items_A.size)
    kept_L = support_A[number_L] >= min_support
    if kept_L.all():
        return trace, np.arange(trace.num_bags)
    kept = trace.keep(kept_L)
    alive = kept.filled()
    rare = int((support_A < min_support).sum())
    note = (
        f"{trace.num_ids - kept.num_ids} of {trace.num_ids} ids, of {rare} items in fewer than "
        f"{min_support} sampled bags, were left out"
    )
    return dataclasses.replace(kept.take(alive), note=note), alive


def save_held(
    path: str | os.PathLike[str], held: Mapping[str, Held], half_lives: HalfLives
) -> None:
    """Write the sample of every table, whole or not at all.

    Raises:
        GraceError: ``path`` is something else than a profile folder, or cannot be written.
    """
    document, arrays = Profile({name: one.profile for name, one in held.items()}).as_folder()
    state: dict[str, Any] = {}
    for index, (name, one) in enumerate(held.items()):
        arrays[f"{index}.keys"] = -np.array([e.minus_key for e in one.entries], np.float64)
        limit = one.limit if math.isfinite(one.limit) else None
        state[name] = dict(zip(NUMBERS, (one.bags_seen, limit, one.base), strict=True))
    document |= {STATE: state, HALF_LIVES: half_lives._asdict()}
    artifact.write_folder(path, "profile", document, arrays)


def load_held(
    path: str | os.PathLike[str], tables: Mapping[str, LiveTable], half_lives: HalfLives
) -> dict[str, Held]:
    """Read what :func:`save_held` wrote.

    Raises:
        GraceError: the folder is damaged, no recorder wrote it, or one of other half-lives did.
        PlanMismatch: the tables are others.
    """
    artifact.put_back(path)  # and no more: a live writer may be at work there
    document, arrays = artifact.read_folder(path, "profile")  # once: the next one has other bags
    profile = Profile.from_folder(document, arrays, path)
    state = document.get(STATE)
    if not isinstance(state, dict) or state.keys() != profile.tables.keys():
        raise GraceError(f"{path}: is a profile that no recorder wrote; record anew")
    found = {}
    for name, table in profile.tables.items():
        _check_table(f"{path}: table {name!r}", table, tables.get(name))
        index = document["tables"][name]["arrays"]
        keys, numbers = arrays.get(f"{index}.keys"), state[name]
        if keys is None or keys.shape != (table.trace.num_bags,) or not _are_numbers(numbers):
            raise GraceError(f"{path}: table {name!r}: keys are missing; record anew")
        limit = math.inf if numbers["limit"] is None else float(numbers["limit"])
        entries = _entries(table.trace, keys)
        seen, base = int(numbers["bags_seen"]), float(numbers["base"])
        found[name] = Held(table, entries, seen, limit, base)
    _check_half_lives(path, document.get(HALF_LIVES), found, half_lives)
    return found


def _check_half_lives(
    path: str | os.PathLike[str], told: Any, found: Mapping[str, Held], wanted: HalfLives
) -> None:
    """Refuse other half-lives: keys in their units would let no new bag in, or every one.

    Folders of earlier versions do not tell theirs: they go on where neither they nor the recorder decay.
    """
    if told is None and not any(one.base for one in found.values()):
        told = HalfLives(None, None)._asdict()
    if told != wanted._asdict():
        raise GraceError(
            f"{path}: was recorded with the half-lives {told or 'of an earlier version'}, not "
            f"{wanted._asdict()}; resume with the same ones, or record anew"
        )


def _check_table(where: str, saved: TableProfile, table: LiveTable | None) -> None:
    """Refuse a table that the model has not, or that is another one there."""
    if table is None:
        raise PlanMismatch(f"{where} is not in the model; record anew")
    told = (saved.features, saved.trace.num_items, saved.trace.weights_L is not None)
    wanted = (table.features, table.num_rows, table.is_weighted)
    if told != wanted:
        raise PlanMismatch(
            f"{where} has (features, rows, weights) {told}, in the model {wanted}; record anew"
        )


def _are_numbers(numbers: Any) -> bool:
    """Tell whether the numbers of a table are there."""
    return (
        isinstance(numbers, dict)
        and set(NUMBERS) <= set(numbers)
        and isinstance(numbers["bags_seen"], int)
        and isinstance(numbers["base"], int | float)
        and (numbers["limit"] is None or isinstance(numbers["limit"], int | float))
    )


def _entries(trace: Trace, keys_B: npt.NDArray[np.float64]) -> list[Entry]:
    """Return the bags of a trace with their keys."""
    ends = trace.offsets_B1.tolist()
    entries = []
    for bag, key in enumerate(keys_B.tolist()):
        piece = slice(ends[bag], ends[bag + 1])
        weights = None if trace.weights_L is None else trace.weights_L[piece].copy()
        sampled = SampledBag(trace.ids_L[piece].copy(), weights, -math.inf)
        entries.append(Entry(-key, bag, sampled))
    return entries
