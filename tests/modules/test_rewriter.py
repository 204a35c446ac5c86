"""The rewriter: bags over plain and stored rows mean what the raw bags mean."""

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from grace_torchrec.errors import GraceError
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.rewriter import Rewriter, hot_rows
from grace_torchrec.plans.held import code_arrays, stored_sets
from grace_torchrec.plans.table_spec import table_specs

GUARD = torch.empty(0, dtype=torch.int8)


@pytest.fixture
def plan_of(table_of, collection_of, table_plan):
    """Return a function from a layout to the plan of one table."""
    return lambda **layout: table_plan(table_specs(collection_of([table_of()]))[0], **layout)


def as_lists(indptr, items):
    return [part.tolist() for part in np.split(items, indptr[1:-1])]


def test_the_sets_of_both_memories_are_all_sums_and_the_hot_rows(plan_of):
    sets = stored_sets(plan_of(num_hbm_sums=2, hot_items=(9, 7)))
    assert as_lists(*sets["hbm"]) == [[1, 2], [3, 4], [7], [9]]
    assert as_lists(*sets["host"]) == [[3, 5], [4, 5], [3, 4, 5]]


@pytest.mark.parametrize(
    ("layout", "tiers"),
    [
        ({"num_hbm_sums": 0}, ["host"]),
        ({"num_hbm_sums": 5}, ["hbm"]),
        ({"clusters": ()}, []),
        ({"clusters": None}, []),
        ({"clusters": (), "hot_items": (3,)}, ["hbm"]),
    ],
)
def test_a_memory_without_rows_has_no_sets(plan_of, layout, tiers):
    assert list(stored_sets(plan_of(**layout))) == tiers


def test_hot_rows_follow_the_sums_of_their_memory(plan_of):
    rows = hot_rows(plan_of(num_hbm_sums=2, hot_items=(9, 7)))
    assert {item: row for item, row in enumerate(rows.tolist()) if row >= 0} == {7: 2, 9: 3}


def test_without_sums_or_hot_rows_there_is_no_array(plan_of):
    for clusters in (None, ()):
        assert code_arrays(plan_of(clusters=clusters).sums)["item_code"].size == 0
    assert hot_rows(plan_of()).size == 0


@pytest.fixture
def rewriter_of(table_of, collection_of, plans_of):
    """Two tables; feature 'item' reads both. Returns (rewriter, plans by output feature)."""

    def make(by_table=None, *, is_weighted=False, bad_ids="raise", **layout):
        tables = [table_of(features=("item", "seen")), table_of("t_b", features=("item",))]
        plans = plans_of(collection_of(tables, is_weighted=is_weighted), by_table, **layout)
        first, second = plans.values()
        names = ["item@t_item", "seen", "item@t_b"]
        return Rewriter([first, second], names, bad_ids), [first, first, second]

    return make


def rewrite(rewriter, batch, chosen, is_weighted=False):
    bags = bags_of(batch, ["item", "seen", "item"], is_weighted, False)
    return rewriter(*bags, chosen, GUARD)


def items_behind(rewritten, plan, name, bag):
    """Raw ids that the three parts of a rewritten feature stand for, with weights."""
    found = Counter()
    for suffix, tier in (("", "plain"), ("__hbm", "hbm"), ("__host", "host")):
        part = rewritten[name + suffix]
        begin, end = part.offsets()[bag : bag + 2].tolist()
        rows = part.values()[begin:end].tolist()
        weights = [1.0] * len(rows)
        if part.weights_or_none() is not None:
            weights = part.weights()[begin:end].tolist()
        sets = None if tier == "plain" or not rows else as_lists(*stored_sets(plan)[tier])
        for row, weight in zip(rows, weights, strict=True):
            found.update((i, weight) for i in (sets[row] if sets else [row]))
    return found


@pytest.mark.parametrize(
    "codes", [("clusters", "clusters"), ("subsets", "clusters"), ("subsets", "subsets")]
)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_items_behind_all_parts_of_a_bag_are_the_bag(rewriter_of, batch_of, is_weighted, codes):
    rewriter, plans = rewriter_of(
        {
            "t_item": {"code": codes[0]},
            "t_b": {"num_hbm_sums": 1.0, "hot_items": (), "code": codes[1]},
        },
        is_weighted=is_weighted,
        num_hbm_sums=2,
        hot_items=(7, 0),
    )
    bags = {"item": [[1, 2, 7, 9], [], [3, 3, 5, 4, 3]], "seen": [[4, 5], [0], [2, 1, 2]]}
    weights = {key: [[1.0] * len(bag) for bag in of_key] for key, of_key in bags.items()}
    weights["item"][2] = [0.5, 2.0, 2.0, 0.5, 1.0]
    batch = batch_of(bags, weights if is_weighted else None)
    rewritten, bag_lengths, reads = rewrite(rewriter, batch, [0, 1, 2], is_weighted)
    for output, (name, key) in enumerate(
        [("item@t_item", "item"), ("seen", "seen"), ("item@t_b", "item")]
    ):
        assert bag_lengths[output].tolist() == [len(bag) for bag in bags[key]]
        for bag, ids in enumerate(bags[key]):
            asked = weights[key][bag] if is_weighted else [1.0] * len(ids)
            got = items_behind(rewritten, plans[output], name, bag)
            assert got == Counter(zip(ids, asked, strict=True))
    assert reads[:, 0].tolist() == [9, 6, 9]
    assert int(reads[:, 1].sum()) == rewritten.values().numel() < int(reads[:, 0].sum())


def test_features_looked_up_elsewhere_are_present_and_empty(rewriter_of, batch_of):
    """The inner collections ask for all their features."""
    rewriter, _ = rewriter_of(num_hbm_sums=2)
    batch = batch_of({"item": [[1, 2], [9]], "seen": [[3], [4]]})
    rewritten, bag_lengths, reads = rewrite(rewriter, batch, [2])
    assert sorted(rewritten.keys()) == sorted(
        name + suffix
        for name in ("item@t_item", "seen", "item@t_b")
        for suffix in ("", "__hbm", "__host")
    )
    assert rewritten["item@t_b__hbm"].values().tolist() == [0]
    assert rewritten["item@t_b"].values().tolist() == [9]
    for name in ("item@t_item", "seen"):
        assert rewritten[name].lengths().tolist() == [0, 0]
    assert (bag_lengths.tolist(), reads.tolist()) == ([[2, 1]], [[3, 2]])


def test_arrays_are_copies_and_stay_out_of_the_state_dict(rewriter_of):
    rewriter, plans = rewriter_of(num_hbm_sums=2, hot_items=(7,))
    assert rewriter.state_dict() == {}
    before = rewriter.item_codes()[0].clone()
    plans[0].sums.code.item_code_N[:] = 0
    assert torch.equal(rewriter.item_codes()[0], before)
    assert len(list(rewriter.buffers())) == 4


CHANGES = {
    "in place": lambda rewriter, name: rewriter.get_buffer(name).view(-1)[-1:].add_(1),
    "given anew": lambda rewriter, name: setattr(rewriter, name, rewriter.get_buffer(name) + 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("code", ["clusters", "subsets", "sets"])
def test_the_stamp_follows_every_array_of_the_codes(rewriter_of, code, change):
    lookup = "ahead" if code == "sets" else "fused"
    names = code_arrays(rewriter_of({}, code=code, lookup=lookup)[1][0].sums)
    for name in names:
        rewriter, _ = rewriter_of(code=code, lookup=lookup)
        twin, _ = rewriter_of(code=code, lookup=lookup)
        before = rewriter.stamp
        assert twin.stamp == before == rewriter.stamp
        change(rewriter, f"{name}_1")
        assert rewriter.stamp != before
        change(twin, f"{name}_1")
        assert twin.stamp == rewriter.stamp
        for copied in (copy.deepcopy(rewriter), pickle.loads(pickle.dumps(rewriter))):
            assert copied.stamp == rewriter.stamp


def test_where_rows_lie_is_no_part_of_the_stamp(rewriter_of):
    one, _ = rewriter_of(num_hbm_sums=2, hot_items=(7,))
    other, _ = rewriter_of()
    assert one.stamp == other.stamp
    assert rewriter_of(code="subsets")[0].stamp != other.stamp


def test_half_tables_get_half_weights(table_of, collection_of, plans_of):
    tables = [table_of(dtype="fp16"), table_of("t_b", features=("b",), dtype="fp16")]
    plans = plans_of(collection_of(tables, is_weighted=True))
    assert Rewriter(list(plans.values()), ["item", "b"], "raise").weight_dtype == torch.float16


def test_an_unknown_policy_is_refused(rewriter_of):
    with pytest.raises(GraceError, match=r"one of \['raise', 'drop', 'zero_row'\], got 'ignore'"):
        rewriter_of(bad_ids="ignore")
