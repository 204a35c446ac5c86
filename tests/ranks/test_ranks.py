"""Swapped models under DistributedModelParallel on two and four gloo ranks.

The ranks run first (cases.py); the tests judge what they found, a test for each truth.
"""

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

WAYS = ("table_wise", "row_wise", "column_wise", "data_parallel")
KINDS = [f"forward_{way}" for way in WAYS]
TWO = (
    *KINDS, "forward_weighted", "forward_half_rows", "rewritten_ahead", "no_bags",
    "in_small_chunks", "refused", "save_checkpoints", "load_checkpoints", "pipelines",
    "pipeline_notices_a_load", "planned",
)  # fmt: skip
FOUR = (*KINDS, "load_checkpoints", "planned")
STOCK_KEYS = {
    "ebc.embedding_bags.t_item.weight", "ebc.embedding_bags.t_page.weight",
    "ebc.embedding_bags.t_user.weight", "ebc.embedding_bags.t_shop.weight",
    "over.weight", "over.bias",
}  # fmt: skip
REBUILD = "call grace_torchrec.rebuild_sums_(model) on every rank"


@pytest.fixture(scope="session")
def two(on_ranks):
    return on_ranks(2, *TWO)


@pytest.fixture(scope="session")
def four(on_ranks, two):
    return on_ranks(4, *FOUR)


@pytest.fixture
def ranks(request):
    """What the ranks found, by the number in the parameter."""
    return request.getfixturevalue(request.param)


def found(ranks, case):
    """Return what every rank found in a case; fail with the first traceback."""
    for rank, results in enumerate(ranks):
        for name, result in results.items():
            error = result.get("error") if isinstance(result, dict) else None
            assert not isinstance(error, str), f"rank {rank}, {name}:\n{error}"
    assert all(case in results for results in ranks), "a rank hung or died before this case"
    return [results[case] for results in ranks]


both = pytest.mark.parametrize("ranks", ["two", "four"], indirect=True)


@both
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_answers_are_those_of_the_unsharded_stock_model(ranks, kind) -> None:
    for result in found(ranks, kind):
        assert result["error"] <= 1e-6
        assert result["error_to_swapped"] <= 1e-6
        assert result["output_keys"] == result["stock_output_keys"]
        ids, rows = result["reads"]
        assert 0 < rows < ids  # sums are read


@both
@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_model_has_the_stock_keys(ranks, kind) -> None:
    for result in found(ranks, kind):
        assert set(result["keys"]) == STOCK_KEYS
        assert len(result["keys"]) == len(STOCK_KEYS)
        assert result["distributed_keys"] == result["stock_keys"]
        assert result["loaded"] == "<All keys matched successfully>"


@both
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_is_stale_until_all_rebuild(ranks, kind) -> None:
    for result in found(ranks, kind):
        assert REBUILD in result["stale_before"]
        assert REBUILD in result["stale_after_load"]
        assert result["rows"] == 9 + 2 + 7 + 9  # of all ranks
        assert result["stale"] == {}
        assert any("of the fullest rank" in line for line in result["told"])


@both
def test_ranks_hold_what_the_plan_says_and_answer_as_the_stock_model(ranks) -> None:
    results = found(ranks, "planned")
    assert len({result["plan"] for result in results}) == 1
    for result in results:
        assert result["error"] == 0
        assert result["held"] == result["wanted"]
        assert result["rows"] > 0
        assert result["memories"] == ["hbm", "host"]


def test_weights_and_half_rows_shard_too(two) -> None:
    for result in found(two, "forward_weighted"):
        assert result["error"] == 0
    for result in found(two, "forward_half_rows"):  # its sums are rounded to half, as unsharded
        assert result["error_to_swapped"] <= 1e-6
        assert result["error"] <= 1e-2


def test_batches_rewritten_ahead_are_read_by_their_rows(two) -> None:
    for result in found(two, "rewritten_ahead"):
        for lookup in ("ahead", "fused", "stock"):
            of = result[lookup]
            assert of["rewritten"] == of["plain"] == 0
            assert of["rewritten_reads"][1] < of["rewritten_reads"][0]
        assert result["ahead"]["plain_reads"][0] == result["ahead"]["plain_reads"][1]
        assert result["ahead"]["plain_batches"] == 2
        assert result["fused"]["plain_reads"] == result["fused"]["rewritten_reads"]
        assert "reads row 10000, there are 24 rows and 9 sums" in result["bad_row"]


def test_a_batch_of_no_bags_has_no_rows(two) -> None:
    for result in found(two, "no_bags"):
        assert result["plain"] == result["ready"] == [0, 40]


def test_chunks_bound_the_memory_and_change_nothing(two) -> None:
    results = found(two, "in_small_chunks")
    for result in results:
        assert len(result["told"]) > 8  # a chunk for each stored row of the fullest rank
        assert result["error"] == 0
        assert result["fresh"] == {}
    assert "t_page" not in results[0]["stale"]  # the damaged row lies on the last rank
    assert "is not the sum of its rows" in results[-1]["stale"]["t_page"]


def test_what_a_sharded_model_refuses_is_said(two) -> None:
    for result in found(two, "refused"):
        assert "verify the model before DistributedModelParallel" in result["verify"]
        assert "restore_ before DistributedModelParallel" in result["restore"]
        assert "inference only" in result["training"]
        assert "inference only" in result["backward"]


@both
@pytest.mark.parametrize("saved", ["swapped", "stock"])
@pytest.mark.parametrize("into", ["swapped", "stock"])
def test_distributed_checkpoints_load_at_other_world_sizes_both_ways(ranks, saved, into) -> None:
    results = [result[f"{saved}-{into}"] for result in found(ranks, "load_checkpoints")]
    assert max(result["error"] for result in results) <= 1e-6
    if into == "swapped":
        # written in place: seen by the ranks that hold rows; loaded through the model: by all
        assert any(result["holds"] for result in results)
        for result in results:
            assert REBUILD in result["in_place"] or not result["holds"]
            assert REBUILD in result["loaded"]


def test_checkpoints_hold_the_stock_keys_and_no_stored_rows(two) -> None:
    for result in found(two, "save_checkpoints"):
        assert set(result["swapped"]) == set(result["stock"]) == STOCK_KEYS


@pytest.mark.parametrize("saved", ["swapped", "stock"])
def test_a_checkpoint_of_two_ranks_loads_into_one_unsharded_model(
    two, tmp_path_factory, request, saved
) -> None:
    found(two, "save_checkpoints")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    models = _models()
    model, stock = models.swapped_model(whole=False), models.stock_model(seed=7, whole=False)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=shared / "ranks" / f"{saved}-checkpoint", no_dist=True)
    model.load_state_dict(state["model"])
    bags = models.batch(5)
    with torch.no_grad():
        assert float((model(bags)[1] - stock(bags)[1]).abs().max()) <= 1e-6
    assert not model.ebc.stale_tables()


def _models():
    import importlib.util
    from pathlib import Path

    path = Path(__file__).with_name("swapped_models.py")
    spec = importlib.util.spec_from_file_location("swapped_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lookup", ["fused", "ahead"])
@pytest.mark.parametrize("kind", ["TrainPipelineSparseDist", "EvalPipelineSparseDist"])
def test_pipelines_hold_both_collections_and_the_rewriter(two, kind, lookup) -> None:
    for results in found(two, "pipelines"):
        result = results[f"{kind}-{lookup}"]
        assert np.max(result["errors"]) == 0
        assert result["pipelined"] == ["ShardedEmbeddingBagCollection"] * 2
        assert result["postprocs"] == ["ShardedRewriter"]
        assert "call detach() on the pipeline" in result["held"]
        assert result["after"] == 0


def test_a_pipeline_refuses_a_batch_that_was_rewritten_before_a_load(two) -> None:
    for result in found(two, "pipeline_notices_a_load"):
        assert REBUILD in result["stale"]


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_case_on_other_world_sizes(on_ranks, world_size) -> None:
    ranks = on_ranks(world_size, *TWO)
    for case in TWO:
        found(ranks, case)
    for kind in KINDS:
        assert all(result["error"] <= 1e-6 for result in found(ranks, kind))
    for results in found(ranks, "pipelines"):
        assert all(np.max(result["errors"]) == 0 for result in results.values())
