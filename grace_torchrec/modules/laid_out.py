"""Laid out: where the tables of a module lie, written down once for every batch that finds them there.

Flow: module -> *LaidOut* -> features of a lookup, ready for the kernels.  Whatever could move a table
or change what it means is compared before each use.
"""

from operator import is_not
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace_kernels.op_inputs import packed_codes, subset_tables
from grace_kernels.table_rows import FeatureRows, TableRows
from grace_torchrec.modules.lookup import Lookup, refuse_unreadable
from grace_torchrec.modules.watch import Unchanged, Watch
from grace_torchrec.recent import Recent

if TYPE_CHECKING:
    from grace_torchrec.modules.stored_tables import StoredTables


class LaidOut:
    """The tables of a module as they were when this was made.

    Args:
        owner: The module, its tables on the CPU.

    Attributes:
        watch: Its stored rows, ready to be compared.
        policy: What an id outside its table does.

    Raises:
        NotSupported: a table was given a type or layout that no kernel reads.
        StaleSums: sums of unknown origin are not those of their rows.
    """

    def __init__(self, owner: "StoredTables") -> None:
        rewriter = owner.rewriter
        self._weights, self._arrays = owner.weights(), rewriter.arrays()
        for plan, weight in zip(owner.table_plans, self._weights, strict=True):
            refuse_unreadable(repr(plan.spec.name), weight)
        codes, hot_rows = rewriter.item_codes(), rewriter.hot_rows()
        subsets = subset_tables(*rewriter.subsets(), len(codes))
        self._rows = [
            TableRows(
                weight.detach().numpy(),
                owner.stored(t, "hbm").detach().numpy(),
                owner.stored(t, "host").detach().numpy(),
                packed_codes(codes[t]),
                hot_rows[t].numpy(),
                rewriter.num_hbm_sums[t],
                subsets[t],
            )
            for t, weight in enumerate(self._weights)
        ]
        self._states = [_state(weight) for weight in self._weights]
        self.policy = rewriter.policy
        self.watch = Watch(*owner.stored_state())
        self._unchanged = Unchanged([*self._weights, *self._arrays, *self.watch.tensors])
        self._by_lookup: Recent[tuple[int, tuple[int, ...]], FeatureRows] = Recent()
        self._by_keys: Recent[tuple[int, tuple[str, ...]], FeatureRows] = Recent()

    def is_current(self, owner: "StoredTables") -> bool:
        """Tell whether rows, codes and stored rows are where they were, and the same."""
        weights, arrays = owner.weights(), owner.arrays()
        return (
            self.watch.is_current()
            and self._unchanged()
            and not any(map(is_not, weights, self._weights))
            and not any(map(is_not, arrays, self._arrays))
            and list(map(_state, weights)) == self._states
        )

    def features(self, lookup: Lookup, positions: tuple[int, ...]) -> FeatureRows:
        """Return the features of a lookup, laid out once for each order of the batch's keys.

        Args:
            lookup: Whose features.
            positions: Where each stands in the batch.
        """
        key = (id(lookup), positions)
        found = self._by_lookup.get(key)
        if found is None:
            found = self._by_lookup[key] = FeatureRows(
                [self._rows[t] for t in lookup.table_of],
                positions,
                [lookup.mean[t] for t in lookup.table_of],
            )
        return found

    def features_of_keys(
        self, lookup: Lookup, input_names: list[str], keys: tuple[str, ...]
    ) -> FeatureRows | None:
        """Return the features of a lookup for a batch with these keys, None if one is missing.

        Args:
            lookup: Whose features.
            input_names: Feature of the batch behind each output feature.
            keys: Of the batch.
        """
        found = self._by_keys.get((id(lookup), keys))
        if found is None:
            place = {key: number for number, key in enumerate(keys)}
            names = [input_names[f] for f in lookup.chosen]
            if not all(name in place for name in names):
                return None
            found = self.features(lookup, tuple(place[name] for name in names))
            self._by_keys[id(lookup), keys] = found
        return found


def _state(weight: Tensor) -> tuple[Any, ...]:
    """Return what changes, beside the address, when a Parameter is given other data."""
    return weight.dtype, weight.shape, weight.is_contiguous()
