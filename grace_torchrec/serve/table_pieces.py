"""Table pieces: where the rows of a table lie in fbgemm's table batches.

Flow: a collection over table batches, sharded or not -> *pieces_of* -> rows are written and read.
TorchRec leaves the rows of a sharded quantised model uninitialised; they are written here, slice by
slice where a table is sharded by rows.
Shapes: N rows of a table, K rows at hand, W bytes of a packed row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torchrec.distributed.quant_embeddingbag import ShardedQuantEmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection

TableBatch: TypeAlias = IntNBitTableBatchedEmbeddingBagsCodegen


@dataclass(frozen=True, eq=False)
class TablePiece:
    """Consecutive rows of one table in one table batch.

    Attributes:
        batch: The table batch.
        place: Number of the table in it.
        first_row: Row of the table that is row 0 here.
        num_rows: How many rows.
    """

    batch: TableBatch
    place: int
    first_row: int
    num_rows: int

    def rows(self) -> Tensor:
        """Return the rows themselves, uint8 ``[num_rows, W or more]`` (padded on a GPU)."""
        return batch_rows(self.batch)[self.place]

    def update(self, ids_K: Tensor, packed_KW: Tensor) -> None:
        """Write the rows among ``ids_K`` that lie here.

        Args:
            ids_K: int64 rows of the whole table.
            packed_KW: uint8.
        """
        local = ids_K - self.first_row
        inside = (local >= 0) & (local < self.num_rows)
        if not bool(inside.any()):
            return
        local, packed = local[inside], packed_KW[inside]
        rows = self.rows()
        if self.batch.use_cpu or rows.is_meta:
            rows[local, : packed.shape[1]] = packed.to(rows.device)
            return
        padded = packed.new_zeros(packed.shape[0], rows.shape[1])
        padded[:, : packed.shape[1]] = packed
        # fbgemm's own update also renews the rows that a cache holds (CUDA only).
        self.batch.embedding_inplace_update_internal(
            [self.place] * local.numel(), local.tolist(), padded.to(rows.device).flatten()
        )


def batch_rows(batch: TableBatch) -> list[Tensor]:
    """Return the rows of every table of a batch; fbgemm finds them all or none."""
    return [rows for rows, _ in batch.split_embedding_weights(split_scale_shifts=False)]


def pieces_of(module: nn.Module) -> dict[str, list[TablePiece]]:
    """Return table name -> its pieces, for every table in the table batches of ``module``.

    Args:
        module: Holds quantised collections, as TorchRec makes them, sharded or not.
    """
    found: dict[str, list[TablePiece]] = {}
    for collection in module.modules():
        if isinstance(collection, ShardedQuantEmbeddingBagCollection):
            pieces = _sharded(collection)
        elif isinstance(collection, QuantEmbeddingBagCollection):
            pieces = _whole(collection)
        else:
            continue
        for name, piece in pieces:
            found.setdefault(name, []).append(piece)
    return found


def fill(pieces: Sequence[TablePiece], chunks: Iterable[Tensor]) -> None:
    """Write all rows of a table, from the first on; what a cache holds is not renewed.

    Args:
        pieces: Of the table.
        chunks: uint8 ``[K, W]`` each, one after the other.
    """
    held = [(piece, piece.rows()) for piece in pieces]
    first = 0
    for packed_KW in chunks:
        last = first + packed_KW.shape[0]
        for piece, rows in held:
            begin, end = max(first, piece.first_row), min(last, piece.first_row + piece.num_rows)
            if begin < end:
                here = rows[begin - piece.first_row : end - piece.first_row, : packed_KW.shape[1]]
                here.copy_(packed_KW[begin - first : end - first])
        first = last


def batches_of(module: nn.Module) -> list[TableBatch]:
    """Return every table batch of ``module`` once, in a fixed order."""
    pieces = (piece for of_table in pieces_of(module).values() for piece in of_table)
    return list(dict.fromkeys(piece.batch for piece in pieces))


def give_memory(batch: TableBatch, rows: Tensor) -> bool:
    """Let a table batch that was made on the meta device read its rows where they lie on the CPU.

    Args:
        batch: The table batch.
        rows: uint8, all its rows.

    Returns:
        Whether they have the size that it needs; it is not changed otherwise.
    """
    batch.reset_weights_placements_and_offsets(torch.device("cpu"), EmbeddingLocation.HOST.value)
    if rows.dtype != torch.uint8 or tuple(rows.shape) != (batch.host_size,):
        return False
    batch.recompute_module_buffers()
    for name, buffer in list(batch.named_buffers()):
        if buffer.is_meta:  # of caches, which a CPU has not
            setattr(batch, name, torch.zeros(buffer.shape, dtype=buffer.dtype, device="cpu"))
    batch.use_cpu = True
    batch.weight_initialized = False
    num_bytes, batch.host_size = batch.host_size, 0
    batch.initialize_weights()  # would allocate and clear them
    batch.host_size, batch.weights_host = num_bytes, rows
    batch.weights_dev = torch.zeros(0, dtype=torch.uint8, device="cpu")
    return True


def own_memory(batch: TableBatch) -> None:
    """Give a table batch memory of its own, of the kind it has, with the same rows in it.

    A cache's state moves too.  What a collection shows of the old rows in its state dict stays old:
    rows are read through :func:`pieces_of`.
    """
    for name, buffer in list(batch.named_buffers()):
        if not name.startswith("weights_"):
            setattr(batch, name, buffer.clone())
    batch.weights_host = batch.weights_host.clone()
    batch.weights_dev = batch.weights_dev.clone()
    if batch.weights_uvm.is_cuda:  # a clone would lie on the device
        like = torch.zeros(1, device=batch.D_offsets.device, dtype=torch.uint8)
        shape = list(batch.weights_uvm.shape)
        moved = torch.ops.fbgemm.new_unified_tensor(like, shape, batch.uvm_host_mapped)
        batch.weights_uvm = moved.copy_(batch.weights_uvm)


def _whole(collection: QuantEmbeddingBagCollection) -> Iterator[tuple[str, TablePiece]]:
    """Yield the tables of an unsharded collection: each is one piece."""
    for batch in collection.tbes:
        for place, (name, num_rows, *_) in enumerate(batch.embedding_specs):
            yield name, TablePiece(batch, place, 0, num_rows)


def _sharded(collection: ShardedQuantEmbeddingBagCollection) -> Iterator[tuple[str, TablePiece]]:
    """Yield the shards of a sharded collection."""
    for batch, config in collection.tbes_configs().items():
        for place, table in enumerate(config.embedding_tables):
            metadata = table.local_metadata
            first = 0 if metadata is None else int(metadata.shard_offsets[0])
            yield table.name, TablePiece(batch, place, first, int(batch.embedding_specs[place][1]))
