"""The drop-in as a module: what it takes over, what it tells, and what it refuses when made."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torchrec import EmbeddingBagCollection

from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.plans.table_spec import table_specs


@pytest.fixture
def stock(table_of, collection_of) -> EmbeddingBagCollection:
    return collection_of(
        [table_of(), table_of("t_b", features=("b", "item"), dim=6, pooling="mean")]
    )


def test_it_takes_the_parameters_over_and_tells_what_the_stock_collection_tells(stock, swap_of):
    module = swap_of(stock, num_hbm_sums=2, hot_items=(7,))
    for name, bag in stock.embedding_bags.items():
        assert module.embedding_bags[name].weight is bag.weight
    assert module.embedding_bag_configs() == stock.embedding_bag_configs()
    assert module.is_weighted() == stock.is_weighted()
    assert module.device == torch.device("cpu")
    assert module.output_names == ["item@t_item", "b", "item@t_b"]
    assert module.input_names == ["item", "b", "item"]
    assert module.dims == [4, 6, 6]


def test_the_stock_collection_still_answers(stock, swap_of, batch_of):
    batch = batch_of({"item": [[1, 2], [7]], "b": [[3, 4], []]})
    before = stock(batch).values()
    swap_of(stock, num_hbm_sums=2, hot_items=(7,))
    assert torch.equal(stock(batch).values(), before)


@pytest.mark.parametrize(
    ("layout", "tiers"),
    [
        ({"originals": "hbm", "num_hbm_sums": 5}, ["hbm"]),
        ({"originals": "host", "num_hbm_sums": 0}, ["host"]),
        ({"originals": "host", "num_hbm_sums": 1}, ["hbm", "host"]),
        ({"originals": "hbm", "num_hbm_sums": 1}, ["hbm", "host"]),
        ({"clusters": None}, ["host"]),
    ],
)
def test_there_is_one_stock_collection_for_each_memory_in_use(stock, swap_of, layout, tiers):
    inner = swap_of(stock, **layout).inner_collections()
    assert sorted(inner) == tiers
    assert {type(collection) for collection in inner.values()} == {EmbeddingBagCollection}


def test_training_is_refused(stock, swap_of, batch_of):
    module = swap_of(stock).train()
    with pytest.raises(NotSupported, match=r"inference only: call model.eval\(\), or restore_"):
        module(batch_of({"item": [[1]], "b": [[1]]}))


def test_a_table_without_a_plan_is_refused(stock, plans_of):
    plans = plans_of(stock)
    del plans["t_b"]
    with pytest.raises(PlanMismatch, match=r"'t_b' has no plan; plans are given for \['t_item'\]"):
        GraceEmbeddingBagCollection(stock, plans)


@pytest.mark.parametrize(
    "change",
    [{"num_rows": 19}, {"num_rows": 21}, {"dim": 5}, {"dtype": "fp16"}, {"pooling": "mean"},
     {"features": ("seen",)}, {"is_weighted": True}],
    ids=str,
)  # fmt: skip
def test_a_plan_for_another_table_is_refused(stock, plans_of, table_plan, change):
    """The kernels trust the plan: a code of another length would be read out of bounds."""
    spec = replace(table_specs(stock)[0], **change)
    plans = plans_of(stock) | {"t_item": table_plan(spec)}
    with pytest.raises(PlanMismatch, match=r"'t_item' is .* its plan was made for"):
        GraceEmbeddingBagCollection(stock, plans)


def test_a_plan_made_inside_a_larger_model_fits(stock, plans_of, table_plan):
    specs = table_specs(torch.nn.Sequential(stock))
    plans = {spec.name: table_plan(spec) for spec in specs}
    assert specs[0].module == "0"
    assert len(GraceEmbeddingBagCollection(stock, plans).table_plans) == 2


def test_an_unknown_policy_is_refused(stock, swap_of):
    with pytest.raises(GraceError, match="bad_ids must be one of"):
        swap_of(stock, bad_ids="clamp")


def test_counting_begins_at_zero_each_time(stock, swap_of, batch_of):
    module = swap_of(stock)
    batch = batch_of({"item": [[1, 2]], "b": [[3]]})
    for _ in range(2):
        with module.counting_reads() as reads:
            module(batch)
        assert reads.tolist() == [[2, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize("weighted", [False, True])  # one call, or checked step by step
@pytest.mark.parametrize("default", [torch.float64, torch.float16])
def test_the_defaults_of_the_process_do_not_matter(
    swap_of, collection_of, table_of, batch_of, default, weighted
):
    tables = [table_of(), table_of("t_page", features=("page",), dim=8)]
    stock = collection_of(tables, is_weighted=weighted)
    bags = {"item": [[1, 2, 7], [3, 4, 5]], "page": [[1, 2], []]}
    weights = {"item": [[2.0, 2.0, 1.0], [0.5, 0.5, 0.5]], "page": [[1.0, 3.0], []]}
    batch = batch_of(bags, weights if weighted else None)
    want = stock(batch).values()
    swapped = swap_of(stock)
    torch.set_default_dtype(default)
    answers = []
    try:
        for is_grad in (False, True):  # the direct lookup, then the ops
            for _ in range(2):
                with torch.set_grad_enabled(is_grad):
                    answers.append(swapped(batch).values())
                batch.offsets()  # with them the direct lookup is one call
    finally:
        torch.set_default_dtype(torch.float32)
    for got in answers:
        assert got.dtype == torch.float32
        assert got.equal(want)


def test_a_forked_child_looks_up_after_its_parent_used_threads(tmp_path):
    """GNU OpenMP ends a child that starts threads after its parent did: the child uses one."""
    script = tmp_path / "fork.py"
    script.write_text(
        "import os, numpy as np\n"
        "from grace_kernels.cpu import TableRows, pooled_lookup\n"
        "rows, none = np.ones((100, 64), np.float32), np.zeros(0, np.int32)\n"
        "table = TableRows(rows, rows[:0], rows[:0], none, none, 0)\n"
        "ids, offsets = np.zeros(20000, np.int64), np.arange(0, 20001, 20)\n"
        "out = np.zeros((1000, 64), np.float32)\n"
        "run = lambda: pooled_lookup(ids, offsets, None, table, out, mean=False, policy=0, num_threads=2)\n"
        "run()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    out[:] = 0\n"
        "    run()\n"
        "    os._exit(0 if (out == 20).all() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
