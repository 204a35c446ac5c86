"""TorchScript: a served model as stock operators only, for bags that were rewritten ahead.

Flow: eager served model -> *scripted* -> torch.jit.save; batches -> *script_batch* -> the scripted
model, in a process that has torchrec and fbgemm and nothing of this package.
A batch's KeyedJaggedTensor carries, before its own features, three bags for each rewritten feature
(plain rows, stored rows in HBM, in host memory) and, as a bag of one number, the length of the bag
that was given: MEAN divides by it.
Shapes: F features, B bags of each.
"""

import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torchrec.fx import Tracer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules.rewrite_ahead import rows_of
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.same_values import same_values
from grace_torchrec.serve.copies import twin_of
from grace_torchrec.serve.parts import parts_of_rows
from grace_torchrec.serve.table_batch_collection import TABLE_BATCH, TableBatchCollection

LENGTH_SUFFIX = "__given"
ANNOTATIONS = (
    "The TorchScript type system doesn't support instance-level annotations",
    "TorchScript will treat type annotations of Tensor",
)


class ScriptCollection(nn.Module):
    """A collection that finds its parts in the batch.

    Args:
        collection: What it stands for.
    """

    def __init__(self, collection: TableBatchCollection) -> None:
        super().__init__()
        self.lookup = collection.lookup
        self.length_keys = [name + LENGTH_SUFFIX for name in collection.rewriter.names]
        self.names, self.dims = collection.output_names, collection.dims
        self.configs = collection.embedding_bag_configs()

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Return the pooled embeddings of every feature.

        Args:
            features: What :func:`script_batch` makes.
        """
        given = torch.stack([features[key].values() for key in self.length_keys])
        pooled = self.lookup(features, given, given.shape[1])
        return KeyedTensor(keys=self.names, length_per_key=self.dims, values=pooled)

    def embedding_bag_configs(self) -> Any:
        """Return the configs of the original tables: models ask for them."""
        return self.configs


def scripted(
    eager: nn.Module, collections: Mapping[str, TableBatchCollection], example: tuple[Any, ...]
) -> nn.Module:
    """Return a served model as TorchScript; it takes batches of :func:`script_batch`.

    Args:
        eager: The model.
        collections: Its collections by path.
        example: One plain batch.

    Raises:
        NotSupported: the model cannot be traced or scripted.
        GraceError: the example holds no bags.
    """
    model, _ = twin_of(eager, eager)
    replaced = {
        id(model.get_submodule(path)): ScriptCollection(model.get_submodule(path))  # type: ignore[arg-type]
        for path in collections
    }
    if id(model) in replaced:
        model = replaced[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in replaced:
                parent._modules[name] = replaced[id(child)]
    batch = script_batch(collections, example)
    try:
        with torch.no_grad():
            wanted = model(*cloned(batch))  # stock collections note the order of their features now
            graph = Tracer(leaf_modules=[TABLE_BATCH]).trace(model)
            for node, argument in zip(graph.find_nodes(op="placeholder"), batch, strict=False):
                if isinstance(argument, KeyedJaggedTensor):
                    node.type = KeyedJaggedTensor  # a model may not say so
            with warnings.catch_warnings():
                # Of annotations inside TorchRec's and PyTorch's own classes: none is ours to change.
                for told in ANNOTATIONS:
                    warnings.filterwarnings("ignore", told, UserWarning)
                # TorchScript is what was asked for.
                warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
                script: nn.Module = torch.jit.script(fx.GraphModule(model, graph))
            found = script(*cloned(batch))
    except Exception as error:  # whatever the model's own code raises on a proxy or in a compiler
        raise NotSupported(
            f"convert: {type(eager).__name__} cannot be scripted: {error}; use target='module'"
        ) from error
    if not same_values(wanted, found):
        raise NotSupported(
            f"convert: {type(eager).__name__} computes other values as TorchScript (code that "
            "depends on data); use target='module'"
        )
    return script


def script_batch(
    collections: Mapping[str, TableBatchCollection], batch: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return a batch as the scripted model takes it: plain tensors, rewritten ahead.

    Args:
        collections: Of the served model.
        batch: The model's arguments, one of them bags (rewritten or not).

    Raises:
        GraceError: the batch holds no bags or several, or they are malformed.
        OutsideTable: an id is outside its table under ``raise``.
    """
    places = [
        k for k, part in enumerate(batch) if isinstance(part, KeyedJaggedTensor | RewrittenBatch)
    ]
    if len(places) != 1:
        raise GraceError(
            f"batch holds {len(places)} KeyedJaggedTensors, one expected: TorchScript takes "
            "one; use target='module'"
        )
    given = batch[places[0]]
    bags = given.bags if isinstance(given, RewrittenBatch) else given
    if not bags.stride():
        raise GraceError("batch holds no bags: TorchScript takes one or more")
    pieces: list[KeyedJaggedTensor] = []
    for collection in collections.values():
        rows = (
            given.rows_for(collection.path, collection.rewriter.stamp)
            if isinstance(given, RewrittenBatch)
            else rows_of(bags, collection)
        )
        pieces.append(parts_of_rows(rows, collection.rewriter, collection.splitter.num_sums))
        pieces.append(_lengths(rows.given_lengths, collection.rewriter.names))
    parts = list(batch)
    # Ours come first: a scripted collection finds its parts by their places.
    parts[places[0]] = _joined([*pieces, bags])
    return tuple(parts)


def check_script_batch(
    collections: Mapping[str, TableBatchCollection], batch: tuple[Any, ...]
) -> None:
    """Refuse a batch that is not one of :func:`script_batch`: TorchScript would name a missing key.

    Raises:
        GraceError: it is none.
    """
    bags = [part for part in batch if isinstance(part, KeyedJaggedTensor)]
    keys = set(chain.from_iterable(part.keys() for part in bags))
    wanted = {
        name + LENGTH_SUFFIX
        for collection in collections.values()
        for name in collection.rewriter.names
    }
    if not wanted <= keys:
        raise GraceError(
            "Served: the target torchscript takes batches that were rewritten ahead: "
            "served(*script_batch(served.collections, batch)), with script_batch of "
            "grace_torchrec.serve.torchscript"
        )


def _lengths(given_FB: Tensor, names: list[str]) -> KeyedJaggedTensor:
    """Return lengths of the given bags as bags of one number each."""
    return KeyedJaggedTensor(
        keys=[name + LENGTH_SUFFIX for name in names],
        values=given_FB.flatten(),
        lengths=torch.ones(given_FB.numel(), dtype=torch.int64),
    )


def _joined(pieces: list[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    """Return several batches of the same bags as one; where one has weights, others weigh 1."""
    weighted = any(piece.weights_or_none() is not None for piece in pieces)
    weights = [
        torch.ones(piece.values().numel()) if piece.weights_or_none() is None else piece.weights()
        for piece in pieces
    ]
    return KeyedJaggedTensor(
        keys=list(chain.from_iterable(piece.keys() for piece in pieces)),
        values=torch.cat([piece.values().long() for piece in pieces]),
        lengths=torch.cat([piece.lengths().long() for piece in pieces]),
        weights=torch.cat(weights) if weighted else None,
    )
