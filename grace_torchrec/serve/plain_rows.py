"""Plain rows: a collection that stores nothing beside its tables is read by a stock collection.

Flow: bags of a collection whose plan left every table stock -> *PlainRows*: TorchRec's own collection
over the memory of fbgemm's table batches -> KeyedTensor.
It costs more for each feature than one call of our lookup and less for each id where rows are in the
caches, so it pays for long bags.  Derived: the limit was measured on one core of a server.
Shapes: B bags of each feature, L ids, N rows, D dimension.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from grace_kernels.cpu import first_misfit
from grace_kernels.table_rows import TableRows
from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.bags import ID_TYPES

LONG_BAGS = 64  # ids for each feature, all bags of a batch together, from which on it pays
NO_LENGTHS = np.zeros(0, np.int64)


class PlainRows:
    """Serves unweighted float32 tables without sums and hot rows.

    Args:
        configs: The tables, with the types of the stock collection.
        weights: Table name -> rows ``[N, D]``.
    """

    def __init__(
        self, configs: Sequence[EmbeddingBagConfig], weights: Mapping[str, Tensor]
    ) -> None:
        held = {name: nn.Parameter(rows, requires_grad=False) for name, rows in weights.items()}
        self._collection = _torchrec.adopt(configs, held, is_weighted=False).eval()
        self._num_features = sum(len(config.feature_names) for config in configs)

    @classmethod
    def of(
        cls, configs: Sequence[EmbeddingBagConfig], tables: Sequence[TableRows], is_weighted: bool
    ) -> "PlainRows | None":
        """Return what serves the tables; None if one of them stores more, or in another type."""
        for table in tables:
            if table.num_sums or table.hot_row_N.size or table.rows_ND.dtype != np.float32:
                return None
        rows = [torch.from_numpy(table.rows_ND) for table in tables]
        names = [config.name for config in configs]
        return None if is_weighted else cls(configs, dict(zip(names, rows, strict=True)))

    def __call__(self, features: KeyedJaggedTensor) -> KeyedTensor | None:
        """Return what the stock collection returns.

        Args:
            features: Any bags.

        Returns:
            None where it does not pay, or the batch holds what stock does not take: an id outside
            its table, padding, lengths that do not fit.  Our lookup knows what to do with those.
        """
        ids = features.values()
        if ids.numel() < LONG_BAGS * self._num_features or not self._is_usual(features, ids):
            return None
        try:
            return self._collection(features)
        except (RuntimeError, IndexError, KeyError, ValueError, TypeError):
            return None

    def _is_usual(self, features: KeyedJaggedTensor, ids: Tensor) -> bool:
        """Tell bags whose parts fit together; stock does not look."""
        if (
            features.weights_or_none() is not None
            or features.variable_stride_per_key()
            or features.inverse_indices_or_none() is not None
            or ids.dtype not in ID_TYPES
            or not ids.is_cpu
        ):
            return False
        lengths, given = features.lengths_or_none(), features.offsets_or_none()
        if lengths is None and given is None:
            return False
        offsets = features.offsets()  # noted in the batch: the stock collection takes it from there
        bounds = offsets.numpy()
        told = NO_LENGTHS if lengths is None else lengths.reshape(-1).numpy()
        if bounds.size != features.stride() * len(features.keys()) + 1:
            return False
        if offsets.dtype != torch.int64:
            bounds = bounds.astype(np.int64)
        misfit = first_misfit(bounds, told)
        return bool(misfit < 0 and bounds[0] == 0 and bounds[-1] == ids.numel())
