"""The sharding part of a plan: whole tables on ranks that hold them, checked when it is read."""

import copy
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from torchrec.distributed.planner.types import ParameterConstraints

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import GraceError, NoPlan
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.inner_tables import inner_tables
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.sharding import (
    Ranks,
    make_sharded_plan,
    pooling_factors,
    shard_tables,
    skeleton,
)
from grace_torchrec.traces.profile import Profile, TableProfile

OPTIONS = PlanOptions(methods=("grace",), size_limits=(3,))
STOCK = PlanOptions(methods=("grace",), size_limits=(3,), min_gain=0.99)
TABLE_BYTES = 400 * 256


def machine(hbm_bytes, host_bytes):
    return MemoryModel("m", (Tier("hbm", hbm_bytes, 20e9), Tier("host", host_bytes, 1e9)))


def bytes_of_ranks(sharding, name):
    held = [0] * sharding.world_size
    for table in sharding.tables:
        for shard in table.shards:
            held[shard.rank] += getattr(shard, name)
    return held


def test_every_table_of_the_swapped_model_is_on_ranks_in_its_memory(sharded_plan) -> None:
    sharding = sharded_plan.sharding
    inner = {(each.path, each.name): each for each in inner_tables(sharded_plan.tables.values())}
    assert inner.keys() == {(table.module, table.table) for table in sharding.tables}
    assert {path for path, _ in inner} == {"sparse.ebc.hbm", "sparse.ebc.host"}
    for table in sharding.tables:
        each = inner[table.module, table.table]
        assert table.tier == each.tier
        cells = sum(shard.rows * shard.columns for shard in table.shards)
        assert cells == each.num_rows * 64
    assert max(bytes_of_ranks(sharding, "hbm_bytes")) <= 60_000
    assert sharded_plan.memory.machine == "2 ranks of test machine"
    assert sharded_plan.memory.hbm.num_bytes <= 2 * 60_000


def test_rows_read_for_a_bag_are_those_that_the_profile_reads(sharded_plan) -> None:
    factors = {table.table: table.pooling_factors for table in sharded_plan.sharding.tables}
    assert factors["t_user"] == (0.0, 0.0)  # all that its bags read are hot rows
    assert factors["t_user__hbm_rows"] == (1.0, 1.0)
    item = sharded_plan.tables["sparse.ebc.t_item"].placement
    read = sum(factors[name][0] for name in factors if name.startswith("t_item"))
    assert read == (item.hbm.reads + item.host.reads) / 200


def test_weights_that_a_table_does_not_use_change_no_read(sharded_plan, grouped) -> None:
    trace, table = grouped(), sharded_plan.tables["sparse.ebc.t_item"]
    weights_L = np.random.default_rng(0).random(trace.num_ids, np.float32)
    plain, weighted = (
        pooling_factors(table, TableProfile(each, ("item",)))
        for each in (trace, replace(trace, weights_L=weights_L))
    )
    assert plain == weighted
    assert sum(rows for (rows,) in plain.values()) < trace.pooling_factor


def test_a_skeleton_has_the_tables_and_is_made_of_no_memory(sharded_plan) -> None:
    tables = list(sharded_plan.tables.values())
    modules = dict(skeleton(tables).named_modules())
    for each in inner_tables(tables):
        configs = {config.name: config for config in modules[each.path].embedding_bag_configs()}
        assert configs[each.name].num_embeddings == each.num_rows
        assert modules[each.path].embedding_bags[each.name].weight.is_meta


def test_a_plan_for_ranks_comes_back_equal(sharded_plan, tmp_path) -> None:
    sharded_plan.save(tmp_path / "plan")
    back = Plan.load(tmp_path / "plan")
    assert back.sharding == sharded_plan.sharding
    assert plan_fingerprint(back) == plan_fingerprint(sharded_plan)
    assert plan_fingerprint(replace(back, sharding=None)) != plan_fingerprint(sharded_plan)


def test_the_plan_of_torchrec_says_the_same(sharded_plan) -> None:
    modules = sharded_plan.sharding_plan("cpu").plan
    for table in sharded_plan.sharding.tables:
        told = modules[table.module][table.table]
        assert (told.sharding_type, told.compute_kernel) == (table.sharding_type, table.kernel)
        assert told.ranks == [shard.rank for shard in table.shards]
        for shard, given in zip(table.shards, told.sharding_spec.shards, strict=True):
            assert given.shard_offsets == [shard.first_row, shard.first_column]
            assert given.shard_sizes == [shard.rows, shard.columns]
            assert str(given.placement) == f"rank:{shard.rank}/cpu"


def test_a_plan_for_one_device_has_no_plan_of_torchrec(small_plan) -> None:
    with pytest.raises(GraceError, match="world_size"):
        small_plan.sharding_plan()


def sealed(document):
    kept = {k: v for k, v in document.items() if k not in ("plan_sha256", "arrays_sha256")}
    text = json.dumps(kept, sort_keys=True).encode()
    return document | {"plan_sha256": hashlib.sha256(text).hexdigest()}


CHANGES = {
    "sharding": (True, [], "x", 0, {}),
    "world_size": (0, -1, True, "2", 1.0, 1, 2**60, None),
    "local_world_size": (0, 3, None, "1"),
    "batch_size": (0, None, 1.5),
    "tables": ([], None, {}, "x", [1]),
    "module": ("", "sparse.ebc", None, 3),
    "table": ("t_item", "", None),
    "sharding_type": (None, 3, ["row_wise"]),
    "kernel": (None, 1),
    "tier": ("ssd", None, 1),
    "pooling_factors": (None, [None], ["1.0"], [-1.0], [True], "12"),
    "shards": (None, [], [3], {}, "x"),
    "rank": (2, -1, True, 1.0, "0", None),
    "first_row": (-1, 399, 2**62, None, 0.0),
    "first_column": (1, None),
    "rows": (0, 401, -1, 2**63, None),
    "columns": (0, 65, None),
    "hbm_bytes": (-1, None, 1.5),
    "host_bytes": (-1, None),
    "busy_ms": (-1.0, None, "1", True),
    "comms_ms": (-0.1, None),
}


def test_every_value_of_a_sharding_is_checked(sharded_plan, tmp_path) -> None:
    folder = tmp_path / "plan"
    sharded_plan.save(folder)
    good = json.loads((folder / "plan.json").read_text())
    tried = 0
    for name, values in CHANGES.items():
        for value in values:
            document = copy.deepcopy(good)
            place = document
            for step in ("sharding", "tables", -1, "shards", -1):
                if name in place:
                    break
                place = place[step]
            assert place[name] != value or type(place[name]) is not type(value)
            place[name] = value
            (folder / "plan.json").write_text(json.dumps(sealed(document)))
            with pytest.raises(GraceError, match="sharding") as caught:
                pytest.fail(f"{name} = {value!r} gave {Plan.load(folder).sharding}")
            assert "\n" not in str(caught.value)
            if isinstance(place, dict) and name != "sharding":
                del place[name]
                (folder / "plan.json").write_text(json.dumps(sealed(document)))
                with pytest.raises(GraceError, match="sharding"):
                    Plan.load(folder)
            tried += 1
    assert tried > 60


def test_shards_of_another_plan_are_refused(sharded_plan) -> None:
    sharding = sharded_plan.sharding
    with pytest.raises(GraceError, match="no rank holds it"):
        replace(sharded_plan, sharding=replace(sharding, tables=sharding.tables[1:]))
    with pytest.raises(GraceError, match="the plan has no such table"):
        replace(sharded_plan, tables={})
    first, second = sharding.tables[0].shards
    for shards in ((first, first), (first,), (first, replace(second, first_row=first.first_row))):
        table = replace(sharding.tables[0], shards=shards)
        with pytest.raises(GraceError, match="are not the"):
            replace(sharded_plan, sharding=replace(sharding, tables=(table, *sharding.tables[1:])))


def with_shards(plan, kind, parts):
    """Return the plan with table t_item (400 x 64) held in these parts of rows and columns."""
    sharding = plan.sharding
    place = next(k for k, table in enumerate(sharding.tables) if table.table == "t_item")
    first = sharding.tables[place].shards[0]
    names = ("first_row", "first_column", "rows", "columns")
    shards = tuple(
        replace(first, rank=rank % 2, **dict(zip(names, part, strict=True)))
        for rank, part in enumerate(parts)
    )
    table = replace(sharding.tables[place], sharding_type=kind, shards=shards)
    tables = (*sharding.tables[:place], table, *sharding.tables[place + 1 :])
    return replace(plan, sharding=replace(sharding, tables=tables))


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("row_wise", [(0, 0, 200, 64), (199, 0, 200, 64)]),
        ("row_wise", [(0, 0, 199, 64), (200, 0, 201, 64), (399, 0, 0, 64)]),
        ("column_wise", [(0, 0, 400, 32), (0, 31, 400, 32)]),
        ("grid_shard", [(0, 0, 200, 64), (200, 0, 200, 32), (200, 31, 200, 32)]),
        ("data_parallel", [(0, 0, 400, 64)]),
    ],
)
def test_shards_that_overlap_or_leave_a_gap_are_refused(sharded_plan, kind, parts) -> None:
    with pytest.raises(GraceError, match=r"'t_item': its shards are not the 400 x 64"):
        with_shards(sharded_plan, kind, parts)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("row_wise", [(0, 0, 400, 64), (400, 0, 0, 64)]),
        ("column_wise", [(0, 32, 400, 32), (0, 0, 400, 32)]),
        ("grid_shard", [(0, 0, 150, 32), (150, 0, 250, 32), (0, 32, 400, 32)]),
        ("data_parallel", [(0, 0, 400, 64), (0, 0, 400, 64)]),
    ],
)
def test_shards_in_any_order_that_hold_each_value_once_are_a_table(
    sharded_plan, kind, parts
) -> None:
    plan = with_shards(sharded_plan, kind, parts)
    (table,) = (table for table in plan.sharding.tables if table.table == "t_item")
    held = [(s.first_row, s.first_column, s.rows, s.columns) for s in table.shards]
    assert (table.sharding_type, held) == (kind, parts)


def profile_of(grouped, *names):
    return Profile({name: TableProfile(grouped(), (name.removeprefix("t_"),)) for name in names})


def test_constraints_told_where_there_is_no_plan_make_one(spec_of, grouped) -> None:
    # Both tables fit in the host memories, but neither is allowed to be split.
    specs, profile = [spec_of("t_item"), spec_of("t_user")], profile_of(grouped, "t_item", "t_user")
    memory = machine(1_000, int(2.2 * TABLE_BYTES))
    pinned = {
        name: ParameterConstraints(sharding_types=["table_wise"]) for name in ("t_item", "t_user")
    }
    ranks = Ranks(4, batch_size=4, constraints=pinned)
    with pytest.raises(NoPlan, match=r"^table 't_(item|user)': .* bytes") as caught:
        make_sharded_plan(specs, profile, memory, STOCK, ranks)
    told = re.search(r"this works: constraints=(\{.*\})$", str(caught.value)).group(1)
    given = eval(told, {"ParameterConstraints": ParameterConstraints})
    ranks = Ranks(4, batch_size=4, constraints={**pinned, **given})
    plan = make_sharded_plan(specs, profile, memory, STOCK, ranks)
    assert {table.table for table in plan.sharding.tables} >= {"t_item", "t_user"}


def test_where_ranks_cannot_hold_it_less_is_stored_in_hbm(spec_of, grouped) -> None:
    # All HBM together has room for three tables; each of the two ranks has room for one.
    specs = [spec_of(f"t_{k}") for k in range(3)]
    profile = profile_of(grouped, *(spec.name for spec in specs))
    pinned = {spec.name: ParameterConstraints(sharding_types=["table_wise"]) for spec in specs}
    memory = machine(int(1.6 * TABLE_BYTES), 10**9)
    ranks = Ranks(2, batch_size=4, constraints=pinned)
    plan = make_sharded_plan(specs, profile, memory, STOCK, ranks)
    held = {table.table: table.tier for table in plan.sharding.tables}
    assert sorted(held[spec.name] for spec in specs) == ["hbm", "hbm", "host"]
    assert plan.memory.hbm.num_bytes < 0.98 * 2 * memory.hbm.num_bytes


def test_codes_are_on_every_rank_and_take_their_bytes_there(sharded_plan) -> None:
    tables, ranks = list(sharded_plan.tables.values()), Ranks(2, batch_size=4)
    need = max(bytes_of_ranks(sharded_plan.sharding, "host_bytes"))
    codes = sum(t.predicted.metadata_bytes + t.predicted.kept_bytes for t in tables)
    with pytest.raises(NoPlan, match="host memory"):
        shard_tables(tables, {}, machine(60_000, 2 * need + codes // 2), ranks)
    shard_tables(tables, {}, machine(60_000, 2 * (need + codes)), ranks)


def test_constraints_for_tables_that_are_not_there_are_refused(spec_of, grouped) -> None:
    ranks = Ranks(2, constraints={"t_itm": ParameterConstraints()})
    with pytest.raises(GraceError, match="'t_itm', the swapped model has t_item"):
        make_sharded_plan(
            [spec_of()], profile_of(grouped, "t_item"), machine(10**6, 10**9), OPTIONS, ranks
        )


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((0,), "world_size must be an integer >= 1"),
        ((True,), "world_size"),
        ((2, 0), "local_world_size"),
        ((4, 3), "4 ranks do not fill hosts of 3"),
        ((4, 8), "4 ranks do not fill hosts of 8"),
        ((2, 2, 0), "batch_size"),
        ((2, 2, 1.5), "batch_size"),
    ],
)
def test_ranks_out_of_range_are_refused(numbers, told) -> None:
    with pytest.raises(GraceError, match=told):
        Ranks(*numbers)
