"""Live batches: where a model takes its bags, and the bags of one batch, read without torchrec.

Flow: model -> *live_places* -> hooks of the recorder; batch -> *LiveBatch* -> bags that are sampled.
Works by duck typing: a module with ``embedding_bag_configs()`` (stock, swapped, served), the configs
that TorchRec's sharded collection keeps, or a whole Served.  A batch that nothing is sampled from is
asked for its keys and its stride only.
Shapes: F features, B bags of each, L ids.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.traces.readers.kjt import PADDING
from grace_torchrec.traces.trace import finite_weights


@dataclass(frozen=True)
class LiveTable:
    """What a recorder must know of a table.

    Attributes:
        name: Of the table.
        features: That read it.
        num_rows: Rows N.
        is_weighted: Whether its bags carry weights.
    """

    name: str
    features: tuple[str, ...]
    num_rows: int
    is_weighted: bool

    @property
    def id_bytes(self) -> int:
        """Bytes of an id that is held, and of its weight."""
        return (4 if self.num_rows <= 2**31 else 8) + (4 if self.is_weighted else 0)


@dataclass(frozen=True, eq=False)
class LivePlace:
    """A module that takes bags, and its tables."""

    module: Any
    tables: tuple[LiveTable, ...]


def live_places(model: Any) -> list[LivePlace]:
    """Return every module of ``model`` that takes bags, each once, the outermost of nested ones.

    Raises:
        NotSupported: there is none, or two tables have the same name (profiles are keyed by it).
    """
    places = list(_places(model, set()))
    names = [table.name for place in places for table in place.tables]
    if not names:
        raise NotSupported(
            "recorder: model holds no EmbeddingBagCollection; give the model whose bags are recorded"
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise NotSupported(
            f"recorder: two tables are called {twice!r}; profiles are keyed by table name, so rename one"
        )
    return places


def _places(module: Any, seen: set[int]) -> Iterator[LivePlace]:
    """Yield the places at and below a module."""
    if id(module) in seen:
        return
    seen.add(id(module))
    tables = tuple(_tables(module))
    if tables:
        yield LivePlace(module, tables)
        return
    for child in module.children():
        yield from _places(child, seen)


def _tables(module: Any) -> Iterator[LiveTable]:
    """Yield the tables of a module that takes bags itself."""
    held = getattr(module, "collections", None)
    if hasattr(module, "slots") and isinstance(held, Mapping):  # Served: its graph calls no module
        for collection in held.values():
            yield from _tables(collection)
        return
    configs = getattr(module, "embedding_bag_configs", None)
    found = configs() if callable(configs) else getattr(module, "_embedding_bag_configs", ())
    weighted = getattr(module, "is_weighted", None)
    is_weighted = weighted() if callable(weighted) else getattr(module, "_is_weighted", False)
    for config in found:
        yield LiveTable(
            config.name, tuple(config.feature_names), config.num_embeddings, bool(is_weighted)
        )


def bags_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the KeyedJaggedTensors among the arguments of a call, plain or rewritten ahead."""
    for value in (*args, *kwargs.values()):
        bags = getattr(value, "bags", value)
        is_proxy = type(bags).__module__.startswith("torch.fx")  # a tracer is no request
        if not is_proxy and hasattr(bags, "lengths_or_none"):
            yield bags


class LiveBatch:
    """One batch, its arrays taken when the first bag of it is sampled.

    Args:
        bags: A KeyedJaggedTensor on any device; on an accelerator its arrays are copied, which
            waits for it, when a bag is sampled.

    Attributes:
        keys: Of its features.
        stride: Samples of the batch.
        first: First sample that is offered.
        samples: How many are.

    Raises:
        NotSupported: it has a batch size for each feature (VBE).
    """

    def __init__(self, bags: Any) -> None:
        if bags.variable_stride_per_key():
            raise NotSupported("recorder: batch has a batch size for each feature (VBE)")
        self._bags = bags
        self.keys: tuple[str, ...] = tuple(bags.keys())
        self.stride = int(bags.stride())
        self.first, self.samples = 0, self.stride
        self._ends: npt.NDArray[np.int64] | None = None

    def keep_part(self, most_bags: int, source: random.Random) -> int:
        """Keep some samples that lie side by side, of ``most_bags`` bags or of one sample.

        Which ones is drawn before they are looked at: each sample is in one of the parts.

        Args:
            most_bags: Bags of all features.
            source: Of the draw.

        Returns:
            How many parts there are: a bag that is kept stands for so many.
        """
        parts = max(1, min(self.stride, -(-self.stride * len(self.keys) // most_bags)))
        part = source.randrange(parts)
        self.first = self.stride * part // parts
        self.samples = self.stride * (part + 1) // parts - self.first
        return parts

    def bag(
        self, feature: int, sample: int, table: LiveTable
    ) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.float32] | None]:
        """Return one bag, ``sample`` counted from ``first``: ids and weights, no padding.

        The ids are a view where they can be.  What a :class:`Trace` would refuse is refused here:
        once held, one bag would be in the way of the whole sample.

        Raises:
            GraceError: an id is outside the table, a weight is not finite as float32, or lengths,
                ids and weights do not fit together.
        """
        if self._ends is None:
            self._read()
        assert self._ends is not None
        at = feature * self.stride + self.first + sample
        piece = slice(int(self._ends[at]), int(self._ends[at + 1]))
        ids = self._ids[piece]
        weights = self._weights[piece] if table.is_weighted and self._weights is not None else None
        # Read as unsigned, one maximum tells ids below 0 too.
        if ids.size and int(np.maximum.reduce(ids.view(f"u{ids.itemsize}"))) >= table.num_rows:
            kept = ids != PADDING
            ids, weights = ids[kept], None if weights is None else weights[kept]
            if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= table.num_rows):
                raise GraceError(
                    f"recorder: table {table.name!r} is asked for a row outside its {table.num_rows}"
                )
        if table.is_weighted and weights is None:
            raise GraceError(f"recorder: table {table.name!r} is weighted, the batch is not")
        if weights is None:
            return ids, None
        if self._weights is None or self._weights.size != self._ids.size:
            raise GraceError(
                f"recorder: table {table.name!r}: a batch has not one weight for each id"
            )
        return ids, finite_weights(weights, f"recorder: table {table.name!r}: a bag")

    def _read(self) -> None:
        """Take the arrays of the batch."""
        bags = self._bags
        self._ids = _array(bags.values())
        weights = bags.weights_or_none()
        self._weights = None if weights is None else _array(weights)
        lengths = _array(bags.lengths())
        ends = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        fits = lengths.size == len(self.keys) * self.stride and int(lengths.min(initial=0)) >= 0
        fits = fits and int(ends[-1]) <= self._ids.size and self._ids.dtype.kind in "iu"
        if not fits:
            raise GraceError("recorder: lengths and ids of a batch do not fit together")
        self._ends = ends


def _array(tensor: Any) -> npt.NDArray[Any]:
    """Return the values of a tensor as a flat array, a view where that can be had."""
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy().reshape(-1)
    return array
