"""The rows that a swapped model reads are those that the bench counts, for what ``auto`` picks."""

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from bench.cases.traffic import traffic
from grace_torchrec.grouping.choose import fit_auto
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags

TRACES = ("ml100k", "retail", "steam200k", "citeulike_a")
LONG_TRACES = (
    "ml1m", "gowalla_full", "gowalla_poi", "tafeng_users", "tafeng_baskets", "youshu_bundles",
)  # fmt: skip
DIM = 128


def batches_of(trace, size=512):
    """The bags of a trace, ids in source order."""
    for first in range(0, trace.num_bags, size):
        part = trace.take(np.arange(first, min(first + size, trace.num_bags)))
        yield KeyedJaggedTensor(
            keys=["item"],
            values=torch.from_numpy(part.ids_L.astype(np.int64)),
            lengths=torch.from_numpy(np.diff(part.offsets_B1)),
        )


def model_of(num_items):
    """One table of whole numbers: sums of them are exact in any order."""
    config = EmbeddingBagConfig(
        name="t_item", embedding_dim=DIM, num_embeddings=num_items, feature_names=["item"]
    )
    collection = EmbeddingBagCollection(tables=[config])
    weight = collection.embedding_bags["t_item"].weight
    with torch.no_grad():
        weight.copy_(torch.arange(weight.numel()).remainder(17).sub(8).view_as(weight))
    return nn.Sequential(collection).eval()


def check(split, rewriting, picked, rows_after, num_sums):
    """Plan, swap and serve; compare with the figures of the bench."""
    num_items = split.test.num_items
    model = model_of(num_items)
    profile = Profile.from_trace("t_item", split.train, ("item",))
    plan = grace.plan(
        model, profile, grace.MemoryModel.named("h200"),
        PlanOptions(objective="cut", rewriting=rewriting), in_order=True,
    )  # fmt: skip
    (planned,) = plan.tables.values()
    assert planned.picked == picked
    assert planned.num_sums == num_sums
    swapped = grace.accelerate_(model, plan)
    assert swapped.modules
    batches = batches_of(split.test)
    proof = grace.verify(model, grace.rewrite(batches, model) if rewriting == "ahead" else batches)
    (table,) = proof.tables
    assert proof.equal
    assert proof.max_abs_error == 0
    assert (table.ids, table.rows_read) == (split.test.num_ids, rows_after)
    held = model[0].extra_bytes_of("t_item")
    assert held == planned.predicted.extra_bytes


def check_both_ways(path):
    split = split_bags(read_npz(path), 0)
    num_items = split.test.num_items
    told = traffic(split, "auto", 1.0, 0, 4 * DIM, None)
    check(split, "ahead", told["picked"], told["rows_after"], told["extra_rows"])
    in_line = fit_auto(split.fit, split.validation, split.train, num_items, "in_line")
    rows_after = count_reads(split.test, in_line.sums).rows_after
    check(split, "in_line", in_line.picked, rows_after, in_line.sums.num_sums)


@pytest.mark.parametrize("name", TRACES)
def test_what_auto_picks_reads_the_same_rows_when_it_serves(trace_path, name) -> None:
    check_both_ways(trace_path(name))


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG_TRACES)
def test_what_auto_picks_on_long_traces_reads_the_same_rows_when_it_serves(
    trace_path, name
) -> None:
    check_both_ways(trace_path(name))
