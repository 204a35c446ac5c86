"""Row dims: which dimension of each tensor in a model's output follows the rows of its batch.

Flow: outputs for two numbers of rows -> *RowDims* -> ``split``, or CannotSplit.
One output tells nothing: a dimension may have the size of the batch by chance.  What was answered to a
request alone is compared with a joined batch, once for each kind of request; where no request was alone
yet, the smallest of the batch is computed by itself, and thrown away.  One row is a case of its own, for
models squeeze it: the first request of one row is compared too.  Derived.
Shapes: R requests, n rows of one alone, B rows of a joined batch.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedTensor

from grace_torchrec.containers import is_known
from grace_torchrec.recent import Recent
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.serve.joining import CannotSplit
from grace_torchrec.serve.request_form import Alone, blank_row

Batch = tuple[Any, ...]
logger = logging.getLogger(__name__)
MOST_KINDS = 1024  # kinds hold the plain arguments too, which may take many values in turn


@dataclass(frozen=True)
class Outline:
    """An output without its numbers.

    Attributes:
        rows: Of the batch that it answers.
        structure: Containers, keys and types of parts.
        shapes: Of its tensors, in the order in which ``split`` meets them.
    """

    rows: int
    structure: Hashable
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Known:
    """What is known of one kind of request.

    Attributes:
        alone: The output for the fewest rows so far.
        dims: Dimension of each tensor that follows the rows; None: not compared yet.
        why_not: Why its outputs cannot be split, or nothing.
    """

    alone: Outline | None = None
    dims: tuple[int, ...] | None = None
    why_not: str = ""


class RowDims:
    """What one model's outputs have taught; may be used from any thread."""

    def __init__(self) -> None:
        self._known: Recent[Hashable, _Known] = Recent(MOST_KINDS)
        # Kinds that nobody joined yet, and perhaps nobody will: they push none of the others out.
        self._alone: Recent[Hashable, _Known] = Recent(MOST_KINDS)
        self._is_told = False

    def check(self, kind: Hashable) -> None:
        """Refuse to join requests of a kind whose outputs could not be split before.

        Raises:
            CannotSplit: they could not.
        """
        why_not = self._of_kind(kind).why_not
        if why_not:
            raise CannotSplit(why_not)

    def refuse(self, kind: Hashable, error: CannotSplit) -> None:
        """Note that outputs of a kind cannot be split; the first is told."""
        self._known[kind] = _Known(why_not=str(error))
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "engine: requests are computed one by one, for the model returns %s", error
            )

    def note_alone(self, kind: Hashable, rows: int, output: Any) -> None:
        """Learn from the answer to a request that was computed alone.

        Args:
            kind: Of the request.
            rows: Of the request.
            output: Its answer.
        """
        known = self._of_kind(kind)
        if isinstance(kind, Alone) or known.why_not or not _teaches(known, rows):
            return
        try:
            found = _Known(outline_of(output, rows))
        except CannotSplit as error:  # a batch of such requests would be computed in vain
            found = _Known(why_not=str(error))
        (self._known if kind in self._known else self._alone)[kind] = found

    def of(
        self,
        kind: Hashable,
        batches: Sequence[Batch],
        rows_R: Sequence[int],
        output: Any,
        compute: Callable[[list[Batch]], Any],
    ) -> tuple[int, ...]:
        """Return the dimension of each tensor in a joined output that follows the rows.

        Args:
            kind: Of the requests.
            batches: The requests.
            rows_R: Rows of each; their sum is B, above 0.
            output: Of the joined batch.
            compute: Returns the model's output for some of the requests, joined.

        Raises:
            CannotSplit: a part of the output does not follow the rows, or not in one dimension alone.
        """
        joined = outline_of(output, sum(rows_R))
        known = self._of_kind(kind)
        alone, dims = known.alone, known.dims
        least, smallest = min((rows, place) for place, rows in enumerate(rows_R) if rows)
        if alone is None or _teaches(known, least):
            is_all = least == joined.rows  # the others are empty
            alone = joined if is_all else outline_of(compute([cloned(batches[smallest])]), least)
            dims = None
        if dims is None:
            larger = joined
            if alone.rows == joined.rows:
                more = [blank_row(batches[smallest]), batches[smallest]]  # joined: a copy too
                larger = outline_of(compute(more), least + 1)
            dims = _dims(alone, larger)
            self._known[kind] = _Known(alone, dims)
        _check_same(alone, dims, joined)
        return dims

    def _of_kind(self, kind: Hashable) -> _Known:
        """Return what is known of a kind: of joined batches, else of requests that were alone."""
        return self._known.get(kind) or self._alone.get(kind) or _Known()


def _teaches(known: _Known, rows: int) -> bool:
    """Tell whether an output for so many rows alone tells more: the first one, and that for one row."""
    return known.alone is None or (rows == 1 and known.alone.rows > 1)


def outline_of(output: Any, rows: int) -> Outline:
    """Return the outline of an output.

    Args:
        output: Tensors and KeyedTensors, in dicts, lists and tuples.
        rows: Of its batch.

    Raises:
        CannotSplit: it holds something else.
    """
    shapes: list[tuple[int, ...]] = []
    structure = _structure(output, shapes)
    return Outline(rows, structure, tuple(shapes))


def _structure(value: Any, shapes: list[tuple[int, ...]]) -> Hashable:
    """Return the structure of a part; note the shapes of its tensors."""
    if isinstance(value, KeyedTensor):
        shapes.append(tuple(value.values().shape))
        return KeyedTensor, tuple(value.keys()), tuple(value.length_per_key()), value.key_dim()
    if isinstance(value, Tensor):
        if value.is_nested or value.is_quantized or value.layout is not torch.strided:
            raise CannotSplit("a tensor that is nested, quantized or sparse")
        shapes.append(tuple(value.shape))
        return Tensor
    if isinstance(value, dict | list | tuple) and is_known(value):
        keys = tuple(value) if isinstance(value, dict) else ()
        inner = value.values() if isinstance(value, dict) else value
        return type(value), keys, tuple(_structure(part, shapes) for part in inner)
    if value is None:
        return None
    raise CannotSplit(f"an output of type {type(value).__name__}")


def _dims(alone: Outline, joined: Outline) -> tuple[int, ...]:
    """Return the dimension of each tensor that is n in one output and B in the other.

    Raises:
        CannotSplit: a tensor has none, or differs in others too.
    """
    if alone.structure != joined.structure:
        raise CannotSplit(f"other parts for {alone.rows} rows than for {joined.rows}")
    dims = []
    for small, large in zip(alone.shapes, joined.shapes, strict=True):
        moved = [d for d, sizes in enumerate(zip(small, large, strict=False)) if len({*sizes}) > 1]
        sizes = [(small[d], large[d]) for d in moved]
        if len(small) != len(large) or sizes != [(alone.rows, joined.rows)]:
            raise CannotSplit(
                f"an output of shape {small} for {alone.rows} rows, {large} for {joined.rows}"
            )
        dims.append(moved[0])
    return tuple(dims)


def _check_same(alone: Outline, dims: tuple[int, ...], joined: Outline) -> None:
    """Refuse an output that differs from an earlier one in more than its rows.

    Raises:
        CannotSplit: it does.
    """
    wanted = tuple(
        (*shape[:dim], joined.rows, *shape[dim + 1 :])
        for shape, dim in zip(alone.shapes, dims, strict=True)
    )
    if joined.structure != alone.structure or joined.shapes != wanted:
        raise CannotSplit(f"parts of shapes {joined.shapes} once, {wanted} as they were before")
