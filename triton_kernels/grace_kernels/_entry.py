"""One door for a whole lookup: a batch is checked and looked up in a single call by addresses.

Flow: ``FeatureRows.serve`` -> *serve_i64* or *serve_i32* -> _lookup.py.  An array costs about a
microsecond each time it crosses into compiled code, an integer costs nothing.
"""

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from grace_kernels._jit import jit
from grace_kernels._llvm import PTR, load_i32, load_i64
from grace_kernels._lookup import lookup_span


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
        length = offsets[bag + 1] - offsets[bag]
        wrong |= length < 0
        if lengths_at != 0:
            at = lengths_at + length_bytes * bag
            wrong |= length != (load_i64(at) if length_bytes == 8 else load_i32(at))
    return wrong


@jit
def _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at, out_stride,
           reads):  # fmt: skip
    """Check unweighted bags and look them up with one thread."""
    if _misfit(offsets, ids.size, lengths_at, length_bytes):
        return False
    bad, _ = lookup_span(
        0, features.shape[0] * stride, ids, offsets, np.zeros(0, np.float32), features, stride, policy,
        out_at, out_stride, reads,
    )  # fmt: skip
    return bad < 0


@jit
def serve_i64(ids_at, num_ids, offsets_at, num_offsets, lengths_at, length_bytes, features, stride,
              policy, out_at, out_stride, reads):  # fmt: skip
    """Check bags of int64 ids and look them up.

    Args:
        ids_at: Address of the ids of all features.
        num_ids: How many.
        offsets_at: Address of int64 offsets.
        num_offsets: How many.
        lengths_at: Address of lengths that the offsets must agree with, or 0.
        length_bytes: 4 or 8.
        features: int64 ``[F, NUM_COLUMNS]`` of _lookup.py.
        stride: Bags of each feature.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.
        reads: int64 ``[F, 2]``, ids asked for and rows read are added.

    Returns:
        Whether all went well; otherwise what was written does not count.
    """
    ids = carray(_pointer(ids_at, 0), num_ids)
    offsets = carray(_pointer(offsets_at, 0), num_offsets)
    return _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at,
                  out_stride, reads)  # fmt: skip


@jit
def serve_i32(ids_at, num_ids, offsets_at, num_offsets, lengths_at, length_bytes, features, stride,
              policy, out_at, out_stride, reads):  # fmt: skip
    """Do what ``serve_i64`` does for int32 ids."""
    ids = carray(_pointer(ids_at, 1), num_ids)
    offsets = carray(_pointer(offsets_at, 0), num_offsets)
    return _serve(ids, offsets, lengths_at, length_bytes, features, stride, policy, out_at,
                  out_stride, reads)  # fmt: skip
