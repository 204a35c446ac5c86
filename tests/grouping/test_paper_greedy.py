"""Paper greedy: what the paper's rule chooses, held against a slow writing of the same rule."""

import itertools

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.bounds import exact_saving, marginal_bounds
from grace_torchrec.grouping.candidates import judge
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.grouping.paper_greedy import POLICIES, fit
from grace_torchrec.sums.clusters import num_sums
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=6, num_bags=12, longest=6):
    """Random bags with repeats."""
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 1.5).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


def clusters_of(sums):
    """Clusters in stored order: the last set of a block is the whole cluster."""
    found, row = [], 0
    while row < sums.num_sums:
        size = next(
            k for k in range(8, 1, -1)
            if row + num_sums(k) <= sums.num_sums and len(items := set_of(sums, row + num_sums(k) - 1)) == k
            and all(set(set_of(sums, r)) <= set(items) for r in range(row, row + num_sums(k)))
        )  # fmt: skip
        found.append(set_of(sums, row + num_sums(size) - 1))
        row += num_sums(size)
    return found


def set_of(sums, row):
    """Items of one stored row."""
    return sums.set_items_S[sums.set_indptr_R1[row] : sums.set_indptr_R1[row + 1]].tolist()


def slow_greedy(trace, budget, limit, tolerance, interpolation, policy):
    """The rule as the paper's text tells it, one dictionary look-up at a time: (members, value)."""
    pairs = count_pairs(trace)
    degree = [
        sum(pairs.weight(a, b) for b in range(trace.num_items)) for a in range(trace.num_items)
    ]
    free, clusters = set(range(trace.num_items)), []
    for anchor in sorted(free, key=lambda item: (-degree[item], item)):
        if anchor not in free:
            continue
        free.discard(anchor)
        members, value, gains = [anchor], 0.0, []
        while len(members) < limit:
            room = budget - sum(num_sums(len(m)) for m, _ in clusters) - num_sums(len(members))
            more_rows = num_sums(len(members) + 1) - num_sums(len(members))
            worth = {item: marginal_bounds(pairs, members, item) for item in sorted(free)}
            worth = {
                item: bounds.at(interpolation) for item, bounds in worth.items() if bounds.upper
            }
            if not worth or more_rows > room:
                break
            best = max(worth, key=worth.get)
            gain, rows = worth[best] / more_rows, num_sums(len(members))
            earlier = {  # what each policy compares with; the first pair is only met by a floor
                "floor": (gain, 1.0),
                "enlarged": ((value + worth[best]) / (rows + more_rows), value / max(rows, 1)),
                "marginal": (gain, value / max(rows, 1)),
                "last_added": (gain, gains[-1] if gains else 0),
                "first_edge": (gain, gains[0] if gains else 0),
            }
            offered, reference = earlier[policy]
            if offered < tolerance * reference:
                break
            members, value, gains = [*members, best], value + worth[best], [*gains, gain]
            free.discard(best)
        if len(members) > 1:
            clusters.append((members, value))
        else:
            free.add(anchor)
    return clusters


@pytest.mark.parametrize("policy", POLICIES)
def test_same_clusters_as_the_slow_writing(policy):
    sizes = set()
    for seed in range(40):
        trace = random_trace(seed, num_items=10, num_bags=25)
        for budget, limit, tolerance in [(40, 8, 0.4), (11, 4, 0.6), (5, 3, 1.2), (60, 6, 0.0)]:
            slow = slow_greedy(trace, budget, limit, tolerance, 0.5, policy)
            ordered = sorted(slow, key=lambda entry: -entry[1] / num_sums(len(entry[0])))
            found = clusters_of(
                fit(trace, budget, size_limit=limit, tolerance=tolerance, policy=policy)
            )
            assert found == [members for members, _ in ordered]
            sizes |= {len(members) for members in found}
    assert {2, 3} <= sizes


def test_on_6_items_never_more_than_the_best_grouping_and_all_of_it_at_size_2_with_one_row():
    for seed in range(30):
        trace = random_trace(seed)
        for budget in (1, 4, 10):
            sums = fit(trace, budget)
            saved = trace.num_ids - count_reads(trace, sums).rows_after
            assert saved <= best_saving(trace, budget)
        # one row goes to the strongest edge of the busiest item, as the paper's rule says
        pairs = count_pairs(trace)
        anchor = int(pairs.weighted_degrees().argmax())
        one = trace.num_ids - count_reads(trace, fit(trace, 1)).rows_after
        assert one == max(pairs.weight(anchor, other) for other in range(6))


def best_saving(trace, budget):
    """The best disjoint groups of 6 items by trying them all."""
    saving = {
        group: exact_saving(trace, group)
        for size in range(2, 7)
        for group in itertools.combinations(range(6), size)
    }

    def best(items, rows):
        if not items:
            return 0
        outcomes = [best(items[1:], rows)]
        for size in range(1, len(items)):
            cost = num_sums(size + 1)
            for mates in itertools.combinations(items[1:], size) if cost <= rows else ():
                rest = tuple(item for item in items[1:] if item not in mates)
                outcomes.append(saving[(items[0], *mates)] + best(rest, rows - cost))
        return max(outcomes)

    return best(tuple(range(6)), budget)


@pytest.mark.parametrize("policy", POLICIES)
def test_order_of_bags_and_ids_has_no_influence_on_the_groups(policy):
    trace = random_trace(1, num_items=40, num_bags=200, longest=9)
    rng = np.random.default_rng(2)
    bags = [
        rng.permutation(part).tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])
    ]
    other = Trace.from_bags([bags[b] for b in rng.permutation(len(bags))], trace.num_items)
    one, two = fit(trace, 40, policy=policy), fit(other, 40, policy=policy)
    np.testing.assert_array_equal(one.set_items_S, two.set_items_S)
    np.testing.assert_array_equal(one.set_indptr_R1, two.set_indptr_R1)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "floor"])
def test_more_users_of_the_same_tastes_change_no_group(policy):
    trace = random_trace(3, num_items=40, num_bags=100, longest=9)
    many = trace.take(np.tile(np.arange(trace.num_bags), 8))  # 8: scaling by it is exact in floats
    np.testing.assert_array_equal(
        fit(trace, 40, policy=policy).set_items_S, fit(many, 40, policy=policy).set_items_S
    )


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 10, 11, 26, 57, 300])
def test_never_more_sums_than_the_budget_nor_larger_clusters_than_the_limit(budget):
    trace = random_trace(4, num_items=60, num_bags=300, longest=12)
    for limit in (2, 3, 5, 8):
        sums = fit(trace, budget, size_limit=limit)
        assert sums.num_sums <= budget
        assert np.diff(sums.set_indptr_R1).max(initial=0) <= limit


def test_clusters_are_disjoint_and_stored_by_falling_value_per_row():
    trace = random_trace(5, num_items=60, num_bags=300, longest=12)
    sums = fit(trace, 60)
    found = clusters_of(sums)
    members = [item for cluster in found for item in cluster]
    assert len(members) == len(set(members))
    assert sum(num_sums(len(cluster)) for cluster in found) == sums.num_sums
    pairs = count_pairs(trace)
    worth = [
        sum(marginal_bounds(pairs, c[:k], c[k]).at(0.5) for k in range(1, len(c)))
        / num_sums(len(c))
        for c in found
    ]
    assert worth == sorted(worth, reverse=True)
    assert len(set(map(len, found))) > 1


def test_rows_read_with_sums_are_never_more_than_without():
    for seed in range(20):
        fitted, served = random_trace(seed, 30, 60, 10), random_trace(seed + 1000, 30, 60, 10)
        assert count_reads(served, fit(fitted, 30)).rows_after <= served.num_ids


def test_the_seed_changes_nothing():
    trace = random_trace(6, 30, 60, 10)
    np.testing.assert_array_equal(
        fit(trace, 30, seed=0).set_items_S, fit(trace, 30, seed=9).set_items_S
    )


def test_validation_picks_the_limit_of_the_greatest_cut_and_refits_on_all_train_bags():
    split = split_bags(generate(400, 300, 1), 0)
    found = judge(CountedTrace(split.fit, 400, 1), split.validation, 400, ("grace",))
    limits = {f"grace size_limit={limit}": limit for limit in range(3, 9)}
    assert set(found.cuts) == set(limits)
    for name, cut in found.cuts.items():
        sums = fit(split.fit, 400, size_limit=limits[name])
        assert cut == count_reads(split.validation, sums).cut
    best = found.best["grace"].candidate
    assert found.cuts[best.name] == max(found.cuts.values())
    refit = fit(split.train, 400, size_limit=limits[best.name])
    again = best.build(CountedTrace(split.train, 400, split.fit.num_bags), 400)
    np.testing.assert_array_equal(again.set_items_S, refit.set_items_S)


def test_equal_cuts_go_to_the_smaller_limit():
    pairs = Trace.from_bags([[0, 1], [2, 3]] * 5)  # no limit is reached
    found = judge(CountedTrace(pairs, 9, 1), pairs, 9, ("grace",))
    assert len(set(found.cuts.values())) == 1
    assert found.best["grace"].candidate.parameter == "size_limit=3"


@pytest.mark.parametrize("bags", [[], [[]], [[0]], [[0, 0]], [[0], [1]]])
def test_nothing_to_group_stores_nothing(bags):
    assert fit(Trace.from_bags(bags), 10).num_sums == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size_limit": 1}, "size_limit 1, give 2..8"),
        ({"size_limit": 9}, "size_limit 9, give 2..8"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"interpolation": 1.5}, "interpolation"),
        ({"policy": "best"}, "give one of enlarged, marginal, last_added, first_edge, floor"),
        ({"budget": -1}, "budget -1"),
        ({"memory_limit_bytes": 8}, "memory_limit_bytes"),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments, message):
    with pytest.raises(GraceError, match=message):
        fit(Trace.from_bags([[0, 1, 2]]), **{"budget": 3, **arguments})
