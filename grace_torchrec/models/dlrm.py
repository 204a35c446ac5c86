"""A small DLRM over user histories: the model of the demo, the tests and the benches.

Flow: a trace's bags are the feature ``history``; a candidate item is the feature ``candidate``
(one id a bag: a table no sum can help).  More histories, each with a table of its own, make the
share of lookups larger.  The dense part is TorchRec's DLRM.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrec.models.dlrm import DLRM

DENSE_FEATURES = 13
# name -> (bottom hidden sizes, top sizes): where the time goes
SIZES = {
    "embedding_heavy": ([64], [64, 1]),
    "compute_heavy": ([512, 256], [1024, 1024, 512, 1]),
}


def history_features(histories: int = 1) -> list[str]:
    """Return ``history``, ``history_1``, ...: the features with many ids a bag."""
    return ["history", *(f"history_{k}" for k in range(1, histories))]


def history_dlrm(
    num_items: int, dim: int = 128, size: str = "embedding_heavy", histories: int = 1
) -> "DLRM":
    """Return a DLRM with tables ``t_history`` and ``t_candidate`` of ``num_items`` rows each.

    Args:
        num_items: Rows of both tables.
        dim: Embedding dimension, float32.
        size: ``embedding_heavy`` (small dense layers) or ``compute_heavy``.
        histories: Features with many ids a bag: ``history``, ``history_1``, ...

    Returns:
        The model in training mode; it takes (dense float32 ``[B, 13]``, KeyedJaggedTensor).
    """
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=dim,
            num_embeddings=num_items,
            feature_names=[feature],
        )
        for feature in (*history_features(histories), "candidate")
    ]
    bottom, top = SIZES[size]
    return DLRM(
        embedding_bag_collection=EmbeddingBagCollection(tables=tables),
        dense_in_features=DENSE_FEATURES,
        dense_arch_layer_sizes=[*bottom, dim],
        over_arch_layer_sizes=top,
    )
