"""Whatever small tables, bags, memories and options: the plan is saved, loaded, shown and compared.

The one refusal there may be is that the tables fit in no memory, and then no way to put them there is
found by trying all.
"""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import NoPlan
from grace_torchrec.plans.diff import diff_plans
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.sharding import Ranks, make_sharded_plan
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.what_if import what_if
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace
from grace_torchrec.views.diff_tables import diff_markdown, diff_view
from grace_torchrec.views.plan_tables import inspect_markdown, inspect_view
from grace_torchrec.views.report import report_page

METHODS = ("grace", "grace_floor", "subsets")


def bags_of(rng: random.Random, num_rows: int, weighted: bool) -> Trace:
    """Bags of groups of rows, or of any rows; some of none."""
    num_bags = rng.choice([0, 1, 3, 12, 60, 400])
    if num_rows >= 50:
        pooling = (1, min(num_rows, rng.choice([1, 5, 40])))
        seed, repeats = rng.randrange(10**6), rng.choice([0.0, 0.4])
        made = generate(
            num_rows, num_bags, seed=seed, pooling=pooling, community_size=8, repeats=repeats
        )
    else:
        bags = [[rng.randrange(num_rows) for _ in range(rng.randrange(6))] for _ in range(num_bags)]
        made = Trace.from_bags(bags, num_rows)
    if not weighted:
        return made
    return replace(made, weights_L=rng.choices([1.0, 1.0, 0.5], k=made.num_ids))


def profile_of(rng: random.Random, specs: list[TableSpec]) -> Profile:
    """Bags of most of the tables; some have weights that nobody asked for, or lack them."""
    tables = {
        spec.name: TableProfile(
            bags_of(rng, spec.num_rows, spec.is_weighted != (rng.random() < 0.1)), spec.features
        )
        for spec in specs
        if rng.random() < 0.85
    }
    return Profile(tables)


def machine_of(rng: random.Random, specs: list[TableSpec]) -> MemoryModel:
    """A machine that holds the tables barely, well, or not at all."""
    total = sum(spec.num_rows * spec.row_bytes for spec in specs)
    host = Tier("host", int(total * rng.choice([0, 0.3, 0.5, 0.8, 1, 1.05, 2, 10])), 25e9)
    if rng.random() < 0.15:
        return MemoryModel("one memory", (host,))
    hbm = Tier(
        "hbm", int(total * rng.choice([0, 0.1, 0.3, 0.5, 0.7, 1.1, 3])), rng.choice([1e9, 696e9])
    )
    tiers = (hbm, host) if rng.random() < 0.8 else (host, hbm)
    return MemoryModel(
        "two memories",
        tiers,
        rng.choice(["host_mapped", "cached", "managed"]),
        sector_bytes=rng.choice([1, 32, 512]),
        cache_bytes=rng.choice([None, 1, 6_000_000]),
        launch_s=rng.choice([None, 1e-12, 4e-6]),
    )


def options_of(rng: random.Random) -> PlanOptions:
    """What is asked for."""
    rewriting = rng.choice(["in_line", "ahead"])
    methods = METHODS if rewriting == "in_line" else (*METHODS, "set_merge")
    return PlanOptions(
        budget=rng.choice([0.0, 0.1, 1.0, 3.0]),
        objective=rng.choice(["time", "cut"]),
        rewriting=rewriting,
        min_gain=rng.choice([0.0, 0.01]),
        methods=tuple(rng.sample(methods, rng.randint(1, 3))),
    )


def some(seed: int) -> tuple[list[TableSpec], Profile, MemoryModel, PlanOptions]:
    """Return specs, profile, machine and options of one small model."""
    rng = random.Random(seed)
    features = [(f"f{k}",) if rng.random() < 0.8 else (f"f{k}", f"g{k}") for k in range(4)]
    specs = [
        TableSpec(
            "m", f"t{k}", rng.choice([1, 3, 50, 300, 800]), rng.choice([4, 32, 100, 128]),
            rng.choice(["fp32", "fp16"]), rng.choice(["sum", "mean"]), features[k], rng.random() < 0.3,
        )
        for k in range(rng.randint(1, 4))
    ]  # fmt: skip
    return specs, profile_of(rng, specs), machine_of(rng, specs), options_of(rng)


def fits(specs: list[TableSpec], memory: MemoryModel) -> bool:
    """Tell whether the tables fit in the memories, each whole in one."""
    sizes = np.array([spec.num_rows * spec.row_bytes for spec in specs])
    hbm = memory.hbm.num_bytes if memory.hbm else 0
    ways = (np.array(way) for way in itertools.product((False, True), repeat=len(specs)))
    return any(
        sizes[way].sum() <= hbm and sizes[~way].sum() <= memory.host.num_bytes for way in ways
    )


def check(seed: int, folder, before: Plan, ranks: int = 1) -> Plan:
    """Plan, save, load and show one small model; return its plan, the last one where there is none."""
    specs, profile, memory, options = some(seed)
    try:
        if ranks == 1:
            plan = make_plan(specs, profile, memory, options)
        else:
            many = Ranks(ranks, batch_size=4)
            plan = make_sharded_plan(specs, profile, memory, options, many)
    except NoPlan:
        assert ranks > 1 or not fits(specs, memory)
        return before
    plan.save(folder / "plan")
    loaded = Plan.load(folder / "plan")
    assert plan_fingerprint(loaded) == plan_fingerprint(plan)
    summary = summarise(loaded, "plan")
    assert not diff_plans(summarise(plan, "plan"), summary).differs
    for wide in (False, True):
        inspect_view(summary, wide)
    inspect_markdown(summary)
    json.dumps(summary.document(), allow_nan=False)
    for pair in ((summarise(before), summary), (summary, summarise(before))):
        diff_view(diff_plans(*pair))
        diff_markdown(diff_plans(*pair))
        json.dumps(diff_plans(*pair).document(), allow_nan=False)
    report_page(loaded)
    later = profile_of(random.Random(seed + 1), specs)
    for bags in (profile, later, Profile({})) if memory.hbm else ():
        found = what_if(loaded, bags)
        assert report_page(loaded, found).count('class="here"') == 1
    return loaded


def nothing() -> Plan:
    """A plan of no tables, which reads nothing."""
    return Plan({}, MemoryModel.named("a40"), PlanOptions(), Profile({}).fingerprint())


@pytest.mark.soak
def test_every_small_plan_is_saved_shown_and_compared(tmp_path):
    last = nothing()
    for seed in range(400):
        last = check(seed, tmp_path, last, ranks=1 if seed % 8 else 2)
