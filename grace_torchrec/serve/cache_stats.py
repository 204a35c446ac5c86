"""Cache statistics: what fbgemm's row caches in HBM were asked for and missed.

Flow: served model -> *cache_stats* -> metrics.  Only tables in host memory behind a cache
(``uvm_caching`` on a GPU) have one; tables that lie whole in a memory have no hit and no miss.
"""

from dataclasses import dataclass

from torch import nn

from grace_torchrec.serve.table_pieces import batches_of


@dataclass(frozen=True)
class CacheStats:
    """Counts of one table batch since it was made, or since the last reset.

    Attributes:
        tables: Names of its tables.
        calls: Lookups.
        requested: Rows asked for.
        unique: Distinct rows asked for, lookup by lookup.
        missed: Distinct rows that were not in the cache.
        crowded_out: Of these, rows that found no place in it.
    """

    tables: tuple[str, ...]
    calls: int
    requested: int
    unique: int
    missed: int
    crowded_out: int

    @property
    def hit_share(self) -> float:
        """Share of the distinct rows that were in the cache."""
        return 1 - self.missed / self.unique if self.unique else 0.0


def cache_stats(model: nn.Module, *, reset: bool = False) -> list[CacheStats]:
    """Return the counts of every table batch that has a cache.

    Args:
        model: A served model, or any module over table batches.
        reset: Start counting anew.
    """
    found: list[CacheStats] = []
    for batch in batches_of(model):
        if not batch.gather_uvm_cache_stats or not batch.lxu_cache_weights.numel():
            continue
        calls, requested, unique, missed, crowded_out, _ = batch.get_uvm_cache_stats().tolist()
        names = tuple(spec[0] for spec in batch.embedding_specs)
        found.append(CacheStats(names, calls, requested, unique, missed, crowded_out))
        if reset:
            batch.reset_uvm_cache_stats()
    return found
