"""Best partners: exact counts of the best pairs, whatever the order of bags and the threads."""

import numpy as np
import pytest

from grace_torchrec.grouping import partners as counting
from grace_torchrec.grouping import threads
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.grouping.partners import best_partners, ranked_bags
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=60, num_bags=150, longest=12):
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 2).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


def rows(partners):
    """The kept pairs of each item with their counts, as sets."""
    return [
        {(int(p), int(c)) for p, c in zip(ps, cs, strict=True) if p >= 0}
        for ps, cs in zip(partners.partners_NK, partners.counts_NK, strict=True)
    ]


def test_ranks_fall_in_frequency_and_rise_in_every_bag():
    bags = ranked_bags(random_trace(0))
    frequency = np.diff(bags.indptr_N1)
    assert (np.diff(frequency) <= 0).all()
    for part in np.split(bags.ranks_L, bags.offsets_B1[1:-1]):
        assert (np.diff(part) > 0).all()
    for rank in range(bags.num_items):
        held = bags.bags_L[bags.indptr_N1[rank] : bags.indptr_N1[rank + 1]]
        assert (np.diff(held) > 0).all()
        for bag in held:
            assert rank in bags.ranks_L[bags.offsets_B1[bag] : bags.offsets_B1[bag + 1]]


@pytest.mark.parametrize("least", [1, 2, 4])
def test_with_room_for_all_every_pair_is_kept_once_with_its_count(least):
    trace = random_trace(1)
    bags, pairs = ranked_bags(trace), count_pairs(trace)
    for rank, kept in enumerate(rows(best_partners(bags, 60, least))):
        item = bags.item_of_rank_N[rank]
        wanted = {(p, pairs.weight(int(item), int(bags.item_of_rank_N[p]))) for p in range(rank)}
        assert kept == {(p, count) for p, count in wanted if count >= least}


@pytest.mark.parametrize("room", [1, 3, 7])
def test_the_highest_counts_are_kept_and_of_equal_ones_the_more_frequent_item(room):
    bags = ranked_bags(random_trace(2))
    whole = rows(best_partners(bags, 60))
    for kept, everything in zip(rows(best_partners(bags, room)), whole, strict=True):
        best = sorted(everything, key=lambda pair: (-pair[1], pair[0]))[:room]
        assert kept == set(best)


def test_neither_threads_nor_the_order_of_bags_change_what_is_kept(monkeypatch):
    monkeypatch.setattr(threads, "LEAST_IDS_TO_SHARE", 0)
    trace = random_trace(3)
    other = trace.take(np.random.default_rng(0).permutation(trace.num_bags))
    one = rows(best_partners(ranked_bags(trace), 5, num_threads=1))
    assert one == rows(best_partners(ranked_bags(trace), 5, num_threads=3))
    assert one == rows(best_partners(ranked_bags(other), 5, num_threads=2))


def test_the_pair_scale_gives_the_pairs_of_a_bag_that_draws_by_frequency():
    # 6 bags of 2 ids over 4 equal items: 6 pairs, each of 16 ordered draws of 2 is as likely
    trace = Trace.from_bags([[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]])
    bags = ranked_bags(trace)
    assert bags.pair_scale * 3 * 3 == pytest.approx(12 / 144 * 9)
    assert ranked_bags(Trace.from_bags([[]])).pair_scale == 0


@pytest.mark.parametrize("bags", [[], [[]], [[0]], [[2, 2]]])
def test_bags_without_pairs_have_no_partners(bags):
    assert (best_partners(ranked_bags(Trace.from_bags(bags))).partners_NK < 0).all()


def test_progress_ends_with_all_items_and_changes_no_figure():
    bags, seen = ranked_bags(random_trace(4)), []
    told = best_partners(bags, 5, progress=lambda done, items: seen.append((done, items)))
    assert rows(told) == rows(best_partners(bags, 5))
    assert seen == sorted(seen)
    assert seen[-1] == (60, 60)


@pytest.mark.parametrize(("least", "room"), [(1, 60), (2, 5), (9, 3)])
def test_pairs_counted_by_bits_are_those_counted_by_walking(monkeypatch, least, room):
    bags = ranked_bags(random_trace(5, num_bags=200, longest=30))
    found = []
    for words_a_pair in (0, 1 << 20):
        monkeypatch.setattr(counting, "WORDS_A_PAIR", words_a_pair)
        assert counting._bits_are_faster(bags) == (words_a_pair > 0)
        found.append(rows(best_partners(bags, room, least, num_threads=2)))
    assert found[0] == found[1]


def test_bits_never_take_more_room_than_the_ids():
    sparse = ranked_bags(random_trace(6, num_items=4000, num_bags=300, longest=40))
    assert not counting._bits_are_faster(sparse)
