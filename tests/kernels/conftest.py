"""Random clusters and bags that the tests of the kernels share; each fixture is a function."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

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
