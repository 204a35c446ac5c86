"""Sharing: what is settled fits, is placed by all bags, and stops where memories are balanced."""

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.offers import SHARES, Offer, SumsOption, offer_of
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.sharing import share
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

ROW = 256
AHEAD = PlanOptions(rewriting="ahead")


def machine(hbm_rows, beta=0.1, num_items=400):
    hbm_bytes = hbm_rows * ROW + num_items * 4
    tiers = (Tier("hbm", hbm_bytes, 1e9), Tier("host", 10**12, beta * 1e9))
    return MemoryModel("m", tiers, sector_bytes=1)


@pytest.fixture(scope="module")
def offer(spec_of, grouped):
    return offered(spec_of(), split_validation(grouped(800)))


def offered(spec, bags):
    choice = judge_all(bags, AHEAD)
    return offer_of(spec, choice, choice.finalists, SHARES, by_row=True)


@pytest.mark.parametrize("hbm_rows", [0, 50, 200, 400, 900])
def test_rows_in_hbm_fit_and_every_row_is_somewhere(offer, hbm_rows):
    memory = machine(hbm_rows)
    (settled,) = share([offer], memory, ahead=True)
    placed = settled.placement
    assert placed.hbm.bytes <= memory.hbm.num_bytes
    num_sums = settled.sums.num_sums if settled.sums is not None else 0
    assert placed.hbm.rows + placed.host.rows == 400 + num_sums + placed.hot_items.size


def test_what_is_placed_are_the_reads_of_all_bags_with_sums_of_all_bags(offer):
    (settled,) = share([offer], machine(300), ahead=True)
    assert settled.mode == "sums"
    reads = count_reads(offer.bags.all, settled.sums)
    placed = settled.placement
    by_tier = placed.reads_by_tier(reads.plain_reads_N, reads.stored_reads_R)
    assert by_tier == {"hbm": placed.hbm.reads, "host": placed.host.reads}


def test_sums_in_hbm_are_those_read_most(offer):
    (settled,) = share([offer], machine(150), ahead=True)
    reads_R = count_reads(offer.bags.all, settled.sums).stored_reads_R
    hot = settled.placement.num_hbm_sums
    if settled.option.method == "set_merge" and 0 < hot < reads_R.size:
        assert reads_R[:hot].mean() > reads_R[hot:].mean()


def test_bags_rewritten_ahead_keep_no_code_in_hbm(offer):
    (ahead,) = share([offer], machine(300), ahead=True)
    assert ahead.placement.metadata == "host"


def test_host_memory_serves_what_it_has_time_for(spec_of, uniform):
    bags = split_validation(uniform(6000, 400, 20))
    (settled,) = share([Offer(spec_of(), bags, (), "none asked", 0.0)], machine(400), ahead=True)
    assert settled.mode == "hot"
    busy = settled.busy
    assert busy.time_s < settled.stock.time_s / 1.06
    assert abs(busy.hbm_s - busy.host_s) <= 0.1 * busy.time_s


def test_sums_that_fit_on_the_fit_bags_only_are_given_up_with_a_reason(spec_of, offer):
    option = next(one for one in offer.options if one.held.num_sums < 60)
    large = next(one for one in offer.options if one.held.num_sums > 300)
    grown = SumsOption("set_merge", "", option.held, large.refit, large.refit)
    host_bytes = 400 * ROW + option.held.num_sums * ROW + option.held.metadata_bytes + 3000
    tiers = (Tier("hbm", 0, 1e9), Tier("host", host_bytes, 1e8))
    cramped = Offer(offer.spec, offer.bags, (grown,), "", 0.0)
    (settled,) = share([cramped], MemoryModel("m", tiers), ahead=True)
    assert (settled.mode, settled.sums, settled.option) == ("stock", None, None)
    assert "its stored sums need" in settled.note


def test_tables_that_share_hbm_are_not_slower_than_half_of_it_each(spec_of, grouped, uniform):
    offers = []
    for number, trace in enumerate((grouped(600), uniform(600, 400, 20))):
        bags = split_validation(trace)
        offers.append(Offer(spec_of(f"t{number}"), bags, (), "none asked", 0.0))
    both = share(offers, machine(400, num_items=800), ahead=True)
    apart = [share([one], machine(200), ahead=True)[0] for one in offers]
    hbm_s = sum(one.busy.hbm_s for one in both)
    host_s = sum(one.busy.host_s for one in both)
    halves = max(sum(one.busy.hbm_s for one in apart), sum(one.busy.host_s for one in apart))
    assert max(hbm_s, host_s) <= 1.02 * halves


def test_no_tables_settle_nothing():
    assert share([], machine(10), ahead=True) == ()


@pytest.fixture(scope="module")
def splits_of(trace_path):
    return lambda name: split_bags(read_npz(trace_path(name)), 0)


@pytest.mark.parametrize(("name", "least"), [("ml100k", 1.60), ("steam200k", 1.75)])
def test_held_out_bags_are_served_faster_than_from_hbm_alone(spec_of, splits_of, name, least):
    split = splits_of(name)
    num_items = split.test.num_items
    offer = offered(spec_of(num_rows=num_items), split_validation(split.train, in_order=True))
    (settled,) = share([offer], machine(num_items, 0.1, num_items), ahead=True)
    reads = count_reads(split.test, settled.sums)
    rows = settled.placement.reads_by_tier(reads.plain_reads_N, reads.stored_reads_R)
    assert split.test.num_ids / max(rows["hbm"], rows["host"] / 0.1) >= least


@pytest.mark.parametrize("name", ["ml100k", "youshu_bundles", "gowalla_full", "steam200k"])
def test_hot_rows_alone_gain_on_held_out_bags(spec_of, splits_of, name):
    split = splits_of(name)
    num_items = split.test.num_items
    bags = split_validation(split.train, in_order=True)
    spec = spec_of(num_rows=num_items)
    offer = Offer(spec, bags, (), "none asked", 0.0)
    (settled,) = share([offer], machine(num_items, 0.1, num_items), ahead=True)
    reads = split.test.counts()
    rows = settled.placement.reads_by_tier(reads, np.zeros(0, np.int64))
    assert split.test.num_ids / max(rows["hbm"], rows["host"] / 0.1) >= 1.05


def test_a_table_without_bags_is_left_alone(spec_of):
    empty = Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), 400)
    offer = Offer(spec_of(), split_validation(empty), (), "no bags", 0.0)
    (settled,) = share([offer], machine(100), ahead=True)
    assert settled.mode == "stock"


def test_no_more_sums_are_shipped_than_were_judged_where_rows_compete_with_them(spec_of, grouped):
    """All bags make more sums than the fit bags do; they would push rows out of HBM."""
    bags = split_validation(grouped(800))
    choice = judge_all(bags, AHEAD)
    assert choice.best.refit.sums.num_sums > choice.best.held_sums.num_sums
    contested, free = (
        offer_of(spec_of(), choice, choice.finalists, shares, by_row=True)
        for shares in (SHARES, SHARES[-1:])
    )
    assert all(one.refit().num_sums <= one.held.num_sums for one in contested.options)
    assert any(one.refit().num_sums > one.held.num_sums for one in free.options)


def test_tables_that_are_never_read_take_the_hbm_that_nobody_wants(spec_of):
    """The smaller first; a table that is read comes before them."""
    offers = []
    for name, rows in (("t_large", 4000), ("t_small", 1000)):
        empty = split_validation(Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), rows))
        offers.append(Offer(spec_of(name=name, num_rows=rows), empty, (), "no bags", 0.0))
    size = offers[1].spec.row_bytes
    for rows, wanted in (
        (900, []),
        (1000, ["t_small"]),
        (4999, ["t_small"]),
        (5000, ["t_large", "t_small"]),
    ):
        memory = MemoryModel("m", (Tier("hbm", rows * size, 1e12), Tier("host", 10**9, 1e11)))
        settled = share(offers, memory, ahead=True)
        in_hbm = [one.offer.spec.name for one in settled if one.placement.originals == "hbm"]
        assert in_hbm == wanted
        assert [bool(one.note) for one in settled] == [
            one in wanted for one in ("t_large", "t_small")
        ]
    ids = np.random.default_rng(0).integers(0, 1000, 8000)
    read = Trace(np.arange(0, 8001, 8), ids, 1000)
    offers.append(offered(spec_of(name="t_read", num_rows=1000), split_validation(read)))
    memory = MemoryModel("m", (Tier("hbm", 1000 * size, 1e12), Tier("host", 10**9, 1e9)))
    settled = share(offers, memory, ahead=True)
    assert [one.placement.originals for one in settled] == ["host", "host", "hbm"]


@pytest.mark.parametrize("seed", [3, 4, 8, 9])
def test_no_table_stands_in_hbm_twice(spec_of, seed):
    """Ids drawn apart from each other: a stop that fills HBM by chance would copy every row."""
    rng = np.random.default_rng(seed)
    offers = []
    for name, length in (("t_history", 4), ("t_candidate", 1)):
        ends, ids = np.arange(0, 800 * length + 1, length), rng.integers(0, 3000, 800 * length)
        bags = split_validation(Trace(ends, ids, 3000))
        offers.append(offered(spec_of(name=name, num_rows=3000), bags))
    settled = share(offers, MemoryModel.named("a40"), ahead=False)
    assert all(one.placement.hot_items.size < 3000 for one in settled)
