"""Random clusters, tables and bags that the tests of the kernels share; each fixture is a function."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from grace_kernels.cpu import TableRows
from grace_kernels.reference import build_rows_reference, pooled_lookup_reference
from grace_kernels.reference_subsets import pooled_subsets_reference
from grace_kernels.subset_tables import pack_subsets
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
def subsets_of() -> Callable[..., StoredSums]:
    """Return a function that groups items as ``clusters_of`` does and stores some subsets of each."""

    def make(
        random: np.random.Generator, num_items: int, share: float = 0.8, stored: float = 0.3
    ) -> StoredSums:
        ends = [0]
        while (left := int(num_items * share) - ends[-1]) >= 2:
            ends.append(ends[-1] + min(left, int(random.integers(2, 9))))
        members = random.permutation(num_items)[: ends[-1]]
        sizes = np.diff(ends)
        starts = np.cumsum(1 << sizes) - (1 << sizes)
        entries = [
            start + mask
            for start, size in zip(starts, sizes, strict=True)
            for mask in range(1 << size)
            if mask.bit_count() > 1 and random.random() < stored
        ]
        return StoredSums.from_subsets(
            num_items, np.array(ends), members, np.array(entries, np.int64)
        )

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
    sums: StoredSums

    def pooled(self, ids, offsets, weights=None, *, mean, policy):
        """Return what bags (numpy arrays or tensors) mean, and the number of rows they read."""
        bags = [None if part is None else torch.as_tensor(part) for part in (ids, offsets, weights)]
        bags[0] = bags[0].long()
        rows = self.rows_ND, self.stored_RD
        if self.table.subsets is None:
            code = self.item_code_N if self.sums.num_sums else None
            return pooled_lookup_reference(*bags, *rows, code, mean=mean, policy=policy)
        return pooled_subsets_reference(
            *bags, *rows, tensors_of(self.sums), mean=mean, policy=policy
        )


def tensors_of(sums: StoredSums) -> tuple[torch.Tensor, ...]:
    """Return the arrays of a subset code as its reference takes them."""
    code = sums.code
    arrays = (code.item_code_N, code.next_E, code.stored_W.view(np.int64), code.ranks_W)
    return tuple(torch.from_numpy(array) for array in arrays)


@pytest.fixture(scope="session")
def int8_rows_of() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from float rows to fbgemm's int8 rows: fp16 scale, fp16 bias, values.

    Whole numbers less than 256 apart get the scale 1: they are kept exactly.
    """

    def make(rows_ND: torch.Tensor) -> torch.Tensor:
        rows = rows_ND.double()
        least, most = (
            (rows.amin(1), rows.amax(1)) if rows.numel() else (rows.new_zeros(rows.shape[0]),) * 2
        )
        whole = bool((rows == rows.round()).all()) and bool((most - least < 256).all())
        scale = torch.ones_like(least) if whole else (most - least).clamp(min=1e-3) / 255
        head = torch.stack([scale, least], dim=1).half()
        values = ((rows - head[:, 1:].double()) / head[:, :1].double()).round().clamp(0, 255)
        return torch.cat([head.view(torch.uint8), values.to(torch.uint8)], dim=1)

    return make


@pytest.fixture(scope="session")
def float_rows_of() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from fbgemm's int8 rows to the numbers they stand for, float64."""

    def make(rows_NW: torch.Tensor) -> torch.Tensor:
        head = torch.from_numpy(rows_NW[:, :4].numpy().copy().view(np.float16)).double()
        return rows_NW[:, 4:].double() * head[:, :1] + head[:, 1:]

    return make


@pytest.fixture(scope="session")
def table_of(clusters_of, subsets_of, int8_rows_of, float_rows_of) -> Callable[..., LookupCase]:
    """Return a function that makes a table; ``whole`` rows make sums exact in every order.

    ``subsets`` gives it a subset code. ``torch.uint8`` makes int8 rows; ``rows_ND`` and ``stored_RD`` are then the numbers they are.
    """

    def make(
        random: np.random.Generator,
        *,
        num_items: int = 40,
        dim: int = 8,
        dtype: torch.dtype = torch.float32,
        whole: bool = True,
        sums: bool = True,
        subsets: bool = False,
        hbm_share: float = 0.0,
        num_hot: int = 0,
    ) -> LookupCase:
        values = (
            random.integers(-8, 9, (num_items, dim))
            if whole
            else random.normal(size=(num_items, dim))
        )
        int8 = dtype == torch.uint8
        rows = torch.from_numpy(values).to(torch.float32 if int8 else dtype)
        if int8:
            rows = float_rows_of(int8_rows_of(rows)).float()
        group = subsets_of if subsets else clusters_of
        groups = group(random, num_items) if sums else StoredSums.none(num_items)
        subsets = subsets and groups.num_sums > 0
        stored = (
            build_rows_reference(
                rows, torch.from_numpy(groups.set_indptr_R1), torch.from_numpy(groups.set_items_S)
            )
            if groups.num_sums
            else rows[:0]
        )
        if int8:
            stored = float_rows_of(int8_rows_of(stored)).float()
        num_hbm_sums = int(groups.num_sums * hbm_share)
        hot = np.sort(random.permutation(num_items)[:num_hot])
        hot_row = np.full(num_items if num_hot else 0, -1, np.int32)
        hot_row[hot] = num_hbm_sums + np.arange(num_hot)
        code = groups.code.item_code_N if groups.num_sums else np.zeros(0, np.int32)
        held_rows, held_stored = (
            (int8_rows_of(rows), int8_rows_of(stored)) if int8 else (rows, stored)
        )
        copies = held_rows[torch.from_numpy(hot)]
        table = TableRows(
            rows_ND=held_rows.numpy(),
            hbm_RD=torch.cat([held_stored[:num_hbm_sums], copies]).numpy(),
            host_RD=held_stored[num_hbm_sums:].clone().numpy(),
            codes=code,
            hot_row_N=hot_row,
            num_hbm_sums=num_hbm_sums,
            subsets=pack_subsets(groups.code.next_E, groups.code.stored_W) if subsets else None,
        )
        return LookupCase(rows, stored, torch.from_numpy(groups.code.item_code_N), table, groups)

    return make


@pytest.fixture(scope="session")
def subset_tensors() -> Callable[[list[TableRows]], list[list[torch.Tensor]]]:
    """Return a function from tables to the last two arguments of the ops, empty for clusters."""

    def make(tables: list[TableRows]) -> list[list[torch.Tensor]]:
        none = np.zeros(0, np.uint8), np.zeros(0, np.int64)
        pairs = [(t.subsets.next_E, t.subsets.marks_W) if t.subsets else none for t in tables]
        return [[torch.from_numpy(part) for part in parts] for parts in zip(*pairs, strict=True)]

    return make
