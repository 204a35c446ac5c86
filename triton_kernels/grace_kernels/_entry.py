"""Doors: a batch is checked and looked up in a single call by addresses.

Flow: ``FeatureRows.serve`` -> *serve_i64*, *serve_i32* or their shared forms -> _lookup.py;
``FeatureRows.pool`` -> *pool* or *pool_shared* -> _pool_rows.py.  An array costs about a microsecond
each time it crosses into compiled code, an integer costs nothing.  Shared forms are functions of
their own: one thread never waits for parallel code to be compiled.
"""

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from grace_kernels._jit import jit
from grace_kernels._llvm import PTR, load_i32, load_i64
from grace_kernels._lookup import POSITION, lookup_parallel, lookup_span
from grace_kernels._pool_rows import pool_parallel, pool_span


@intrinsic(prefer_literal=True)
def _pointer(typing_context: Any, address: Any, kind: Any) -> Any:
    """Return ``address`` as a pointer to the type that ``kind`` names: 0 int64, 1 int32."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    element = (types.int64, types.int32)[kind.literal_value]

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], PTR)

    return types.CPointer(element)(types.int64, kind), codegen


@jit
def _misfit(offsets: Any, num_ids: Any, lengths_at: Any, length_bytes: Any) -> Any:
    """Tell whether offsets fall, leave the ids, or contradict the lengths (none at address 0)."""
    wrong = offsets[0] != 0 or offsets[offsets.size - 1] != num_ids
    for bag in range(offsets.size - 1):
        wrong |= offsets[bag + 1] < offsets[bag]  # a difference could wrap around
        if lengths_at != 0:
            at = lengths_at + length_bytes * bag
            length = load_i64(at) if length_bytes == 8 else load_i32(at)
            wrong |= offsets[bag + 1] - offsets[bag] != length
    return wrong


@jit
def _bounds(offsets_at, num_offsets, lengths_at, length_bytes):
    """Return offsets as given, or as the running sum of the lengths where none are (address 0)."""
    if offsets_at != 0:
        return carray(_pointer(offsets_at, 0), num_offsets)
    offsets = np.empty(num_offsets, np.int64)
    offsets[0] = 0
    for bag in range(num_offsets - 1):
        at = lengths_at + length_bytes * bag
        length = load_i64(at) if length_bytes == 8 else load_i32(at)
        offsets[bag + 1] = offsets[bag] + length
    return offsets


@jit
def _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at, out_stride,
           reads, rare):  # fmt: skip
    """Check unweighted bags and look them up with one thread."""
    if _misfit(offsets, ids.size, lengths_at, length_bytes):
        return False
    bad, _ = lookup_span(
        0, features.shape[0] * stride, ids, offsets, np.zeros(0, np.float32), features, stride, policy,
        out_at, out_stride, reads, rare,
    )  # fmt: skip
    return bad < 0


@jit
def _serve_shared(num_threads, ids, offsets, lengths_at, length_bytes, features, stride, policy,
                  out_at, out_stride, reads, rare):  # fmt: skip
    """Check unweighted bags and look them up with several threads."""
    if _misfit(offsets, ids.size, lengths_at, length_bytes):
        return False
    bad, _ = lookup_parallel(
        num_threads, ids, offsets, np.zeros(0, np.float32), features, stride, policy, out_at,
        out_stride, reads, rare,
    )  # fmt: skip
    return bad < 0


@jit
def serve_i64(num_threads, ids_at, num_ids, offsets_at, num_offsets, lengths_at, length_bytes,
              features, stride, policy, out_at, out_stride, reads, rare):  # fmt: skip
    """Check bags of int64 ids and look them up.

    Args:
        num_threads: Threads of the shared forms.
        ids_at: Address of the ids of all features.
        num_ids: How many.
        offsets_at: Address of int64 offsets, or 0: the lengths say where bags end.
        num_offsets: How many.
        lengths_at: Address of lengths that the offsets must agree with, or 0.
        length_bytes: 4 or 8.
        features: int64 ``[F, NUM_COLUMNS]`` of _lookup.py.
        stride: Bags of each feature.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.
        reads: int64 ``[F, 2]``, ids asked for and rows read are added.
        rare: RARE of _rewrite.py, or None where no table has a wide code or one of subsets.

    Returns:
        Whether all went well; otherwise what was written does not count.
    """
    ids = carray(_pointer(ids_at, 0), num_ids)
    offsets = _bounds(offsets_at, num_offsets, lengths_at, length_bytes)
    return _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at,
                  out_stride, reads, rare)  # fmt: skip


@jit
def serve_i32(num_threads, ids_at, num_ids, offsets_at, num_offsets, lengths_at, length_bytes,
              features, stride, policy, out_at, out_stride, reads, rare):  # fmt: skip
    """Do what ``serve_i64`` does for int32 ids."""
    ids = carray(_pointer(ids_at, 1), num_ids)
    offsets = _bounds(offsets_at, num_offsets, lengths_at, length_bytes)
    return _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at,
                  out_stride, reads, rare)  # fmt: skip


@jit
def serve_shared_i64(num_threads, ids_at, num_ids, offsets_at, num_offsets, lengths_at,
                     length_bytes, features, stride, policy, out_at, out_stride, reads, rare):  # fmt: skip
    """Do what ``serve_i64`` does with several threads."""
    ids = carray(_pointer(ids_at, 0), num_ids)
    offsets = _bounds(offsets_at, num_offsets, lengths_at, length_bytes)
    return _serve_shared(num_threads, ids, offsets, lengths_at, length_bytes, features, stride,
                         policy, out_at, out_stride, reads, rare)  # fmt: skip


@jit
def serve_shared_i32(num_threads, ids_at, num_ids, offsets_at, num_offsets, lengths_at,
                     length_bytes, features, stride, policy, out_at, out_stride, reads, rare):  # fmt: skip
    """Do what ``serve_i64`` does for int32 ids with several threads."""
    ids = carray(_pointer(ids_at, 1), num_ids)
    offsets = _bounds(offsets_at, num_offsets, lengths_at, length_bytes)
    return _serve_shared(num_threads, ids, offsets, lengths_at, length_bytes, features, stride,
                         policy, out_at, out_stride, reads, rare)  # fmt: skip


@jit
def _rewritten(rows_at, num_rows, offsets_at, given_at, num_bags, features, stride):
    """Return rows, offsets, and the ends of the bags before they were rewritten; empty: no batch."""
    rows = carray(_pointer(rows_at, 0), num_rows)
    offsets = carray(_pointer(offsets_at, 0), num_bags + 1)
    lengths = carray(_pointer(given_at, 0), num_bags)
    given = np.zeros(num_bags + 1, np.int64)
    for bag in range(num_bags):
        given[bag + 1] = given[bag] + lengths[bag]
    wrong = _misfit(offsets, num_rows, 0, 8)
    for feature in range(features.shape[0]):
        wrong |= (features[feature, POSITION] + 1) * stride > num_bags
    return rows, offsets, given[:0] if wrong else given


@jit
def pool(num_threads, rows_at, num_rows, offsets_at, given_at, num_bags, features, stored, stride,
         out_at, out_stride):  # fmt: skip
    """Check rewritten bags without weights, and sum their rows.

    Args:
        num_threads: Threads of the shared form.
        rows_at: Address of int64 rows of all features.
        num_rows: How many.
        offsets_at: Address of int64 offsets, one more than bags.
        given_at: Address of int64 lengths of the bags before they were rewritten.
        num_bags: Bags of all rewritten features.
        features: int64 ``[F, NUM_COLUMNS]`` of _lookup.py.
        stored: int64 ``[F]``, sums of each feature's table.
        stride: Bags of each feature.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.

    Returns:
        Whether all went well; otherwise what was written does not count.
    """
    rows, offsets, given = _rewritten(rows_at, num_rows, offsets_at, given_at, num_bags, features,
                                      stride)  # fmt: skip
    if given.size == 0:
        return False
    bad, _ = pool_span(0, features.shape[0] * stride, rows, offsets, given, np.zeros(0, np.float32),
                       features, stored, stride, out_at, out_stride)  # fmt: skip
    return bad < 0


@jit
def pool_shared(num_threads, rows_at, num_rows, offsets_at, given_at, num_bags, features, stored,
                stride, out_at, out_stride):  # fmt: skip
    """Do what ``pool`` does with several threads."""
    rows, offsets, given = _rewritten(rows_at, num_rows, offsets_at, given_at, num_bags, features,
                                      stride)  # fmt: skip
    if given.size == 0:
        return False
    bad, _ = pool_parallel(num_threads, rows, offsets, given, np.zeros(0, np.float32), features,
                           stored, stride, out_at, out_stride)  # fmt: skip
    return bad < 0
