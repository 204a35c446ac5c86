"""Rewriting ahead: the bags of the next batch become rows while the model works on this one.

Flow: batches -> *rewrite* -> batches with a RewrittenBatch -> model.
The caller's thread takes batches from their source; one background thread rewrites them (the
numba core gives the GIL away), at most ``prefetch`` ahead.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeGuard

from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels.ops_rows import rewrite_features
from grace_torchrec.containers import remade
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.rewriter import Rewriter
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows

Modules = dict[str, GraceEmbeddingBagCollection]


def rewrite(batches: Iterable[Any], model: nn.Module, prefetch: int = 1) -> Iterator[Any]:
    """Rewrite batches ahead of the model; arguments and errors: ``grace_torchrec.api``."""
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 0:
        raise GraceError(f"rewrite: prefetch must be a number of batches >= 0, got {prefetch!r}")
    modules = swapped_modules(model)
    if prefetch == 0:
        return (rewrite_one(batch, modules) for batch in batches)
    return _in_background(iter(batches), modules, prefetch)


def swapped_modules(model: nn.Module) -> Modules:
    """Return the swapped modules of a model by the path that they know.

    Raises:
        GraceError: there are none, or two with the same path and other codes.
    """
    found: Modules = {}
    for module in model.modules():
        if takes_rewritten(module):
            known = found.setdefault(module.path, module)
            if known.rewriter.stamp != module.rewriter.stamp:
                raise GraceError(
                    f"rewrite: two swapped modules were made at {module.path!r} by other plans; "
                    "accelerate_ the model that holds both"
                )
    if not found:
        raise GraceError(
            "rewrite: model holds no swapped module; call accelerate_ first (where it was called: its "
            "plan leaves every table stock, swapped.refused says why)"
        )
    return found


def takes_rewritten(module: nn.Module) -> TypeGuard[GraceEmbeddingBagCollection]:
    """Tell whether a module is a collection with codes of its own: swapped, or its served twin."""
    is_collection = isinstance(module, EmbeddingBagCollectionInterface)
    return is_collection and isinstance(getattr(module, "rewriter", None), Rewriter)


def rewrite_one(batch: Any, modules: Modules) -> Any:
    """Return the batch with its bags rewritten for every module.

    Args:
        batch: A KeyedJaggedTensor, or a tuple or list that holds one.
        modules: Of :func:`swapped_modules`.

    Raises:
        GraceError: the batch holds no bags, or more than one; or they are malformed.
        OutsideTable: an id is outside its table under ``raise``.
    """
    parts = list(batch) if isinstance(batch, list | tuple) else [batch]
    places = [k for k, part in enumerate(parts) if _is_bags(part)]
    if len(places) != 1:
        raise GraceError(
            f"rewrite: batch holds {len(places)} KeyedJaggedTensors, one expected; give the "
            "KeyedJaggedTensor alone, or a tuple or list with one"
        )
    given = parts[places[0]]
    bags = given.bags if isinstance(given, RewrittenBatch) else given
    rows = {path: rows_of(bags, module) for path, module in modules.items()}
    parts[places[0]] = RewrittenBatch(bags, rows)
    if not isinstance(batch, list | tuple):
        return parts[0]
    return remade(batch, parts)


def rows_of(bags: KeyedJaggedTensor, module: GraceEmbeddingBagCollection) -> RewrittenRows:
    """Return the rows that a module reads for a batch; checks and policy are those in line.

    Raises:
        GraceError: the batch is malformed.
        NotSupported: the batch is VBE, or carries weights that would be ignored under ``strict``.
        OutsideTable: an id is outside its table under ``raise``.
    """
    ids, offsets, weights, stride, positions = bags_of(
        bags, module.input_names, module.is_weighted(), module.strict
    )
    rewriter = module.rewriter
    chosen = rewriter.rewritten
    parts = rewrite_features(
        ids, offsets, weights, stride, [positions[f] for f in chosen],
        [rewriter.table_of[f] for f in chosen], rewriter.num_rows, rewriter.item_codes(),
        rewriter.policy, [rewriter.labels[f] for f in chosen], *rewriter.subsets(),
        rewriter.set_codes(),
    )  # fmt: skip
    return RewrittenRows(*parts, rewriter.stamp)


def _in_background(source: Iterator[Any], modules: Modules, prefetch: int) -> Iterator[Any]:
    """Yield rewritten batches in order, ``prefetch`` of them under way while one is used.

    An error, of the source or of a batch, is raised when its batch is asked for; the iterator
    ends with it.  However it ends, also when it is closed or dropped early, the thread ends.
    """
    under_way: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grace-rewrite")
    ended = False
    try:
        while not ended or under_way:
            while not ended and len(under_way) <= prefetch:
                started, ended = _start_next(source, modules, pool)
                under_way.extend(started)
            if under_way:
                yield under_way.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_next(
    source: Iterator[Any], modules: Modules, pool: ThreadPoolExecutor
) -> tuple[list[Future[Any]], bool]:
    """Start on the next batch; return it, if there is one, and whether the source has ended."""
    try:
        batch = next(source)
    except StopIteration:
        return [], True
    except Exception as error:  # raised when this batch is asked for, after those before it
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return [failed], True
    return [pool.submit(rewrite_one, batch, modules)], False


def _is_bags(part: Any) -> bool:
    """Tell bags, rewritten or not, from the rest of a batch."""
    return isinstance(part, KeyedJaggedTensor | RewrittenBatch)
