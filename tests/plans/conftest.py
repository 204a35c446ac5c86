"""Tables and bags that several tests of the plans room share."""

from collections.abc import Callable

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.sharding import Ranks, make_sharded_plan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.trace import Trace


@pytest.fixture(scope="session")
def spec_of() -> Callable[..., TableSpec]:
    """Return a function from a table name and changes to a spec of 400 rows of 256 bytes."""

    def make(name: str = "t_item", **changes: object) -> TableSpec:
        values = {
            "module": "sparse.ebc",
            "name": name,
            "num_rows": 400,
            "dim": 64,
            "dtype": "fp32",
            "pooling": "sum",
            "features": (str(name).removeprefix("t_"),),
            "is_weighted": False,
        }
        return TableSpec(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def grouped() -> Callable[..., Trace]:
    """Return a function that makes bags out of groups of four items that come together."""

    def make(num_bags: int = 200, num_items: int = 400, groups: int = 5, seed: int = 0) -> Trace:
        rng = np.random.default_rng(seed)
        popular = 1 / np.arange(1, num_items // 4 + 1)
        first = [
            rng.choice(num_items // 4, groups, False, popular / popular.sum()) * 4
            for _ in range(num_bags)
        ]
        return Trace.from_bags(
            [[int(f) + s for f in bag for s in range(4)] for bag in first], num_items
        )

    return make


@pytest.fixture(scope="session")
def uniform() -> Callable[..., Trace]:
    """Return a function that draws every id of every bag alone: nothing comes together."""

    def make(num_bags: int = 300, num_items: int = 4000, length: int = 6, seed: int = 0) -> Trace:
        ids = np.random.default_rng(seed).integers(0, num_items, num_bags * length)
        return Trace(np.arange(num_bags + 1) * length, ids, num_items)

    return make


@pytest.fixture(scope="session")
def two_memories() -> Callable[..., MemoryModel]:
    """Return a function from bytes to a machine whose HBM is twenty times as fast as its host."""

    def make(hbm_bytes: int, host_bytes: int = 10**9, **changes: object) -> MemoryModel:
        tiers = (Tier("hbm", hbm_bytes, 20e9), Tier("host", host_bytes, 1e9))
        return MemoryModel("test machine", tiers, **changes)

    return make


@pytest.fixture(scope="session")
def small_plan(spec_of, grouped, two_memories) -> Plan:
    """A plan with a table of sums and hot rows, one of hot rows, and one that was not recorded."""
    specs = [spec_of("t_item"), spec_of("t_user", features=("user", "friend")), spec_of("t_new")]
    single = Trace.from_bags([[b % 40] for b in range(400)], 400)
    profile = Profile(
        {
            "t_item": TableProfile(grouped(), ("item",)),
            "t_user": TableProfile(single, ("user", "friend")),
        }
    )
    return make_plan(
        specs, profile, two_memories(30_000), PlanOptions(methods=("grace",), size_limits=(3, 4))
    )


@pytest.fixture(scope="session")
def sharded_plan(spec_of, grouped, two_memories) -> Plan:
    """A plan for two ranks: sums in either memory, hot rows, a table that was not recorded."""
    specs = [spec_of("t_item"), spec_of("t_user", features=("user", "friend")), spec_of("t_new")]
    single = Trace.from_bags([[b % 40] for b in range(400)], 400)
    profile = Profile(
        {
            "t_item": TableProfile(grouped(), ("item",)),
            "t_user": TableProfile(single, ("user", "friend")),
        }
    )
    options = PlanOptions(methods=("grace",), size_limits=(3, 4))
    ranks = Ranks(world_size=2, batch_size=4)
    return make_sharded_plan(specs, profile, two_memories(60_000), options, ranks)
