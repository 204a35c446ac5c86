"""Inner tables: originals and stored rows of a collection, by the table batch that holds them.

Flow: stock configs + TablePlans + row types -> *InnerTables* -> TableBatchCollection makes a table
batch of each group and fills it.
Shapes: R stored rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from grace_torchrec.modules import _torchrec
from grace_torchrec.modules.rewriter import PART_SUFFIX
from grace_torchrec.plans.held import stored_sets
from grace_torchrec.plans.inner_tables import stored_name
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.serve.row_types import DATA_TYPES, sum_type


@dataclass(frozen=True)
class InnerTables:
    """The tables that a collection becomes.

    Attributes:
        groups: Name of a table batch (the tier, and the type if apart) -> its tables.
        type_of: Table -> type of its rows.
        sets: Table of stored rows -> number of its table, int64 indptr ``[R + 1]`` and items of
            its sets.
    """

    groups: dict[str, list[EmbeddingBagConfig]]
    type_of: dict[str, str]
    sets: dict[str, tuple[int, Tensor, Tensor]]

    @classmethod
    def of(
        cls,
        configs: Sequence[EmbeddingBagConfig],
        plans: Sequence[TablePlan],
        row_types: Sequence[str],
        names: Sequence[str],
        *,
        types_apart: bool,
    ) -> "InnerTables":
        """List them.

        Args:
            configs: Of the original tables.
            plans: One for each.
            row_types: Type of the rows of each.
            names: A unique name for each output feature.
            types_apart: A group for each type of rows too, not only for each memory.
        """
        groups: dict[str, list[EmbeddingBagConfig]] = {}
        type_of: dict[str, str] = {}
        held: dict[str, tuple[int, Tensor, Tensor]] = {}
        left = iter(names)
        for t, (config, plan, own) in enumerate(zip(configs, plans, row_types, strict=True)):
            features = [next(left) for _ in config.feature_names]
            home: str = plan.placement.originals
            tables = [(config.name, home, int(config.num_embeddings), own, "")]
            for tier, sets in stored_sets(plan).items():
                name, kind = stored_name(config.name, tier), sum_type(own, plan.spec.dtype)
                indptr, items = (torch.from_numpy(array) for array in sets)
                held[name] = (t, indptr, items)
                tables.append((name, tier, indptr.numel() - 1, kind, PART_SUFFIX[tier]))
            for name, tier, num_rows, kind, suffix in tables:
                rows = torch.empty(num_rows, config.embedding_dim, device="meta")
                made = _torchrec.table_config(config, name, rows, [f + suffix for f in features])
                group = f"{tier}_{kind}" if types_apart else tier
                groups.setdefault(group, []).append(replace(made, data_type=DATA_TYPES[kind]))
                type_of[name] = kind
        return cls({name: groups[name] for name in sorted(groups)}, type_of, held)

    def parts(self, feature: str) -> list[tuple[str, str]]:
        """Return (group, key of its output) of the bags that add up to a feature, plain ones first."""
        keys = [feature + suffix for suffix in PART_SUFFIX.values()]
        places = {
            key: group
            for group, tables in self.groups.items()
            for table in tables
            for key in table.feature_names
        }
        return [(places[key], key) for key in keys if key in places]
