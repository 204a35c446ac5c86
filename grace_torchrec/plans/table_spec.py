"""Table specs: which embedding tables of a model a plan may speak about.

Flow: model -> *table_specs* -> profile and plan are checked against them.  Only stock
EmbeddingBagCollections are found, by exact type, as TorchRec's own sharders do.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.texts import is_shown, quoted

if TYPE_CHECKING:
    from torch import nn

Dtype = Literal["fp32", "fp16"]
Pooling = Literal["sum", "mean"]
BYTES_OF: dict[str, int] = {"fp32": 4, "fp16": 2}


@dataclass(frozen=True)
class TableSpec:
    """One embedding table of the model.

    Attributes:
        module: Dotted path of its EmbeddingBagCollection (empty for the model itself).
        name: Table name; profiles are keyed by it.
        num_rows: Rows N.
        dim: Values a row.
        dtype: Type of the values.
        pooling: How the rows of a bag are combined.
        features: Features that read the table, in order.
        is_weighted: Whether bags carry a weight for each id.

    Raises:
        GraceError: a field has the wrong type or is out of range.
    """

    module: str
    name: str
    num_rows: int
    dim: int
    dtype: Dtype
    pooling: Pooling
    features: tuple[str, ...]
    is_weighted: bool

    def __post_init__(self) -> None:
        """Check every field once: specs also come from files."""
        where = f"table {self.name!r}"
        texts = (
            (self.module, self.name, *self.features)
            if isinstance(self.features, tuple)
            else (None,)
        )
        if not all(isinstance(text, str) for text in texts) or not self.name or not self.features:
            raise GraceError(f"{where}: module, name and a tuple of features must be text")
        if not all(map(is_shown, texts)):
            raise GraceError(
                f"table {quoted(repr(self.name))}: module, name and features must be printed on one "
                "line; rename it"
            )
        for field_name, value in (("num_rows", self.num_rows), ("dim", self.dim)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**48:
                raise GraceError(f"{where}: {field_name} must be an integer >= 1, got {value!r}")
        if self.dtype not in get_args(Dtype) or self.pooling not in get_args(Pooling):
            raise GraceError(
                f"{where}: dtype {self.dtype!r} or pooling {self.pooling!r} is unknown"
            )
        if not isinstance(self.is_weighted, bool):
            raise GraceError(
                f"{where}: is_weighted must be true or false, got {self.is_weighted!r}"
            )

    @property
    def key(self) -> str:
        """Name of the table inside the model: ``<module>.<name>``, or the name at the root."""
        return f"{self.module}.{self.name}" if self.module else self.name

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dim * BYTES_OF[self.dtype]

    def fingerprint(self) -> str:
        """Short hash of every field."""
        return artifact.fingerprint(json.dumps(asdict(self), sort_keys=True))


def table_specs(model: "nn.Module") -> tuple[TableSpec, ...]:
    """Return the spec of every table in the stock EmbeddingBagCollections of ``model``.

    Collections are matched by exact type. Feature-processed, managed-collision, sharded and
    quantised modules are not entered: they decide over their tables themselves.

    Args:
        model: Any module; it is only read.

    Raises:
        NotSupported: two collections hold a table of the same name (profiles are keyed by
            table name), or a table has a type other than fp32 and fp16.
    """
    specs: list[TableSpec] = []
    owner: dict[str, str] = {}
    for path, collection in stock_collections(model):
        for config in collection.embedding_bag_configs():
            if config.name in owner:
                raise NotSupported(
                    f"table {config.name!r} is in {owner[config.name] or 'the model'!r} and in {path or 'the model'!r}; "
                    "profiles are keyed by table name, so rename one of them"
                )
            owner[config.name] = path
            specs.append(_spec(path, collection, config))
    return tuple(specs)


def stock_collections(model: "nn.Module") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, module) of every stock EmbeddingBagCollection, each module once."""
    from torchrec.distributed.types import ShardedModule
    from torchrec.modules.embedding_modules import (
        EmbeddingBagCollection,
        EmbeddingBagCollectionInterface,
    )
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
    from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

    closed = (
        EmbeddingBagCollectionInterface,
        FeatureProcessedEmbeddingBagCollection,
        BaseManagedCollisionEmbeddingCollection,
        ShardedModule,
    )
    seen: set[int] = set()

    def walk(path: str, module: "nn.Module") -> Iterator[tuple[str, Any]]:
        """Yield stock collections at and below ``module``."""
        if id(module) in seen:
            return
        seen.add(id(module))
        if type(module) is EmbeddingBagCollection:
            yield path, module
        elif not isinstance(module, closed):
            for name, child in module.named_children():
                yield from walk(f"{path}.{name}" if path else name, child)

    return walk("", model)


def _spec(path: str, collection: Any, config: Any) -> TableSpec:
    """Read one table; the weight's own type counts, not the configured one."""
    dtype = str(collection.embedding_bags[config.name].weight.dtype).removeprefix("torch.")
    known: dict[str, Dtype] = {"float32": "fp32", "float16": "fp16"}
    if dtype not in known:
        raise NotSupported(
            f"table {config.name!r} in {path or 'the model'!r} has type {dtype}; "
            "kernels read float32 and float16: convert it with .float() or .half() first"
        )
    return TableSpec(
        module=path,
        name=config.name,
        num_rows=config.num_embeddings,
        dim=config.embedding_dim,
        dtype=known[dtype],
        pooling="mean" if config.pooling.value == "MEAN" else "sum",
        features=tuple(config.feature_names),
        is_weighted=bool(collection.is_weighted()),
    )
