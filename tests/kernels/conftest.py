"""Random clusters, tables and bags that the tests of the kernels share; each fixture is a function."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from grace_kernels.cpu import TableRows
from grace_kernels.reference import build_rows_reference
from grace_torchrec.sums.stored_sums import StoredSums


@pytest.fixture(scope="session")
def clusters_of() -> Callable[..., StoredSums]:
    """Return a function that groups a random part of the items in clusters of 2..8."""

    def make(random: np.random.Generator, num_items: int, share: float = 0.8) -> StoredSums:
        ends = [0]
        while (left := int(num_items * share) - ends[-1]) >= 2:
            ends.append(ends[-1] + min(left, int(random.integers(2, 9))))
        members = random.permutation(num_items)[: ends[-1]]
        return StoredSums.from_clusters(num_items, np.array(ends), members)

    return make


@pytest.fixture(scope="session")
def offsets_of() -> Callable[..., npt.NDArray[np.int64]]:
    """Return a function from lengths of bags to offsets."""

    def make(lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)

    return make


@dataclass(frozen=True)
class LookupCase:
    """A table whose rows are spread over the memories, and the same rows in one piece.

    ``rows_ND`` and ``stored_RD`` (all sums in order) are what the reference takes.
    """

    rows_ND: torch.Tensor
    stored_RD: torch.Tensor
    item_code_N: torch.Tensor
    table: TableRows


@pytest.fixture(scope="session")
def table_of(clusters_of) -> Callable[..., LookupCase]:
    """Return a function that makes a table; ``whole`` rows make sums exact in every order."""

    def make(
        random: np.random.Generator,
        *,
        num_items: int = 40,
        dim: int = 8,
        dtype: torch.dtype = torch.float32,
        whole: bool = True,
        sums: bool = True,
        hbm_share: float = 0.0,
        num_hot: int = 0,
    ) -> LookupCase:
        values = (
            random.integers(-8, 9, (num_items, dim))
            if whole
            else random.normal(size=(num_items, dim))
        )
        rows = torch.from_numpy(values).to(dtype)
        groups = clusters_of(random, num_items) if sums else StoredSums.none(num_items)
        stored = (
            build_rows_reference(
                rows, torch.from_numpy(groups.set_indptr_R1), torch.from_numpy(groups.set_items_S)
            )
            if groups.num_sums
            else rows[:0]
        )
        num_hbm_sums = int(groups.num_sums * hbm_share)
        hot = np.sort(random.permutation(num_items)[:num_hot])
        hot_row = np.full(num_items if num_hot else 0, -1, np.int32)
        hot_row[hot] = num_hbm_sums + np.arange(num_hot)
        code = groups.code.item_code_N if groups.num_sums else np.zeros(0, np.int32)
        table = TableRows(
            rows_ND=rows.numpy(),
            hbm_RD=torch.cat([stored[:num_hbm_sums], rows[torch.from_numpy(hot)]]).numpy(),
            host_RD=stored[num_hbm_sums:].clone().numpy(),
            codes=code,
            hot_row_N=hot_row,
            num_hbm_sums=num_hbm_sums,
        )
        return LookupCase(rows, stored, torch.from_numpy(groups.code.item_code_N), table)

    return make
