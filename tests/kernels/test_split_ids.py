"""Eight ids at once, or one by one: ids of every kind, at every place of a group, mean the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels.cpu import BadId, pooled_lookup, rewrite_counted
from grace_kernels.reference import (
    DROP,
    RAISE,
    ZERO_ROW,
    apply_bad_id_policy_reference,
    pooled_lookup_reference,
    rewrite_clusters_reference,
)
from grace_torchrec.sums.stored_sums import StoredSums

NUM_ITEMS = 40
SUMS = StoredSums.from_clusters(
    NUM_ITEMS, np.array([0, 3, 11, 13, 20]), np.random.default_rng(1).permutation(NUM_ITEMS)[:20]
)
CODE = SUMS.code.item_code_N
PADDING, TOO_LARGE, NEGATIVE, HUGE = -1, NUM_ITEMS, -2, 2**40
LENGTHS = (7, 8, 9, 16, 27)  # groups that end with the bag, before it and behind it


def rewritten_as_meant(ids, offsets, policy):
    """Return (ids asked for, rows, offsets) by the reference."""
    cleaned, bounds, _ = apply_bad_id_policy_reference(
        torch.from_numpy(ids), torch.from_numpy(offsets), None, NUM_ITEMS, policy
    )
    # A bad id that reads row 0 is an item of its own, in no cluster, while it is rewritten.
    code = torch.cat([torch.from_numpy(CODE), torch.tensor([-1])])
    cleaned = torch.where(cleaned == -2, NUM_ITEMS, cleaned)
    rows, ends, _ = rewrite_clusters_reference(cleaned, bounds, None, code)
    rows = torch.where(rows == NUM_ITEMS, 0, torch.where(rows > NUM_ITEMS, rows - 1, rows))
    return cleaned.numel(), rows.numpy(), ends.numpy()


def assert_as_meant(ids, offsets, policy):
    asked, rows, ends, _ = rewrite_counted(ids, offsets, None, CODE, NUM_ITEMS, policy)
    want = rewritten_as_meant(ids, offsets, policy)
    assert asked == want[0]
    np.testing.assert_array_equal(rows, want[1])
    np.testing.assert_array_equal(ends, want[2])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("policy", [RAISE, DROP, ZERO_ROW])
def test_one_odd_id_at_every_place(offsets_of, policy, length) -> None:
    """Around it ids of clusters and of none, before and after it whole bags."""
    random = np.random.default_rng(length)
    offsets = offsets_of([5, length, 12])
    for place in range(5, 5 + length):
        for odd in (PADDING, TOO_LARGE, NEGATIVE, HUGE):
            ids = random.integers(0, NUM_ITEMS, offsets[-1])
            ids[place] = odd
            if policy != RAISE or odd == PADDING:
                assert_as_meant(ids, offsets, policy)
                continue
            with pytest.raises(BadId) as caught:
                rewrite_counted(ids, offsets, None, CODE, NUM_ITEMS, policy)
            assert (caught.value.position, caught.value.id) == (place, odd)


@given(
    st.lists(
        st.lists(st.integers(-3, NUM_ITEMS + 2) | st.integers(0, NUM_ITEMS - 1), max_size=40),
        max_size=6,
    ),
    st.sampled_from([DROP, ZERO_ROW]),
    st.sampled_from([np.int32, np.int64]),
)
@settings(max_examples=150)
def test_groups_with_and_without_odd_ids_take_turns(offsets_of, bags, policy, id_type) -> None:
    ids = np.array([i for bag in bags for i in bag], id_type)
    assert_as_meant(ids, offsets_of([len(bag) for bag in bags]), policy)


@pytest.mark.parametrize("length", range(26))
def test_ids_keep_their_order_at_every_length_of_a_bag(offsets_of, length) -> None:
    """Ids in no cluster come first, as they stood: a lane in another place is another row."""
    alone = np.flatnonzero(CODE < 0)
    random = np.random.default_rng(length)
    offsets = offsets_of([3, length, 3])
    ids = np.where(
        random.random(offsets[-1]) < 0.5,
        random.choice(alone, offsets[-1]),
        random.integers(0, NUM_ITEMS, offsets[-1]),
    )
    assert_as_meant(ids, offsets, RAISE)
    assert_as_meant(np.resize(alone, offsets[-1]), offsets, RAISE)
    assert_as_meant(np.resize(np.flatnonzero(CODE >= 0), offsets[-1]), offsets, RAISE)


@pytest.mark.parametrize("policy", [DROP, ZERO_ROW])
@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("num_hot", [0, 6])
def test_lookups_see_odd_ids_as_rewriting_does(table_of, offsets_of, policy, sums, num_hot) -> None:
    """Tables without sums place eight ids at once too; tables with hot rows never do."""
    random = np.random.default_rng(3)
    case = table_of(random, num_items=NUM_ITEMS, dim=3, sums=sums, num_hot=num_hot, hbm_share=0.5)
    offsets = offsets_of([8, 0, 9, 1, 24, 30])
    for share in (0.02, 0.3, 1.0):
        ids = random.integers(0, NUM_ITEMS, offsets[-1])
        odd = random.random(ids.size) < share
        ids[odd] = random.choice([PADDING, TOO_LARGE, NEGATIVE, HUGE], odd.sum())
        out = np.empty((6, 3), np.float32)
        counts = pooled_lookup(
            ids, offsets, None, case.table, out, mean=False, policy=policy, num_threads=1
        )
        want, rows_read = pooled_lookup_reference(
            torch.from_numpy(ids), torch.from_numpy(offsets), None, case.rows_ND, case.stored_RD,
            case.item_code_N, mean=False, policy=policy,
        )  # fmt: skip
        np.testing.assert_array_equal(out, want.numpy())
        inside = ids != PADDING if policy == ZERO_ROW else (ids >= 0) & (ids < NUM_ITEMS)
        assert counts == (inside.sum(), rows_read)
