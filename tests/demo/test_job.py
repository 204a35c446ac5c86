"""The job refuses what it could not finish, before it writes anything."""

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.demo.job import run
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace


def test_ids_with_huge_gaps_are_refused_with_the_way_out(tmp_path):
    trace = Trace(np.array([0, 2]), np.array([7, 10**12 - 1]), 10**12)
    with pytest.raises(GraceError, match=r"log: ids up to 999,999,999,999 need .* profile --remap"):
        run(trace, "log", MemoryModel.named("a40"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
