"""What TorchRec's tracker saw in training is a delta that serving follows."""

import pytest
import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.model_tracker.model_delta_tracker import ModelDeltaTrackerTrec
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan

from grace_torchrec.errors import NotSupported
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.delta import publish_delta
from grace_torchrec.serve.tracked import tracked_rows


@pytest.fixture
def gloo(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def distributed(model, sharding):
    """Put a model under DistributedModelParallel on one rank; on the CPU it starts from new rows."""
    sharder = EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.5})
    plan = construct_module_sharding_plan(
        model[0], {"t_item": sharding}, sharder=sharder, local_size=1, world_size=1,
        device_type="cpu",
    )  # fmt: skip
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan={"0": plan}), sharders=[sharder]
    )


@pytest.mark.parametrize(
    "sharding",
    [table_wise(0, compute_kernel="fused"), row_wise(compute_kernel="fused")],
    ids=["table", "row"],
)
def test_rows_of_a_training_step_arrive(
    sharding, gloo, collection_of, table_of, model_plan, batch_of
):
    model = nn.Sequential(collection_of([table_of(dim=8)])).eval()
    plan = model_plan(model)
    trained = distributed(nn.Sequential(collection_of([table_of(dim=8)])), sharding)
    trained.load_state_dict(model.state_dict())
    bags = batch_of({"item": [[1, 2, 7], [4, 4]]})
    served = convert(model, plan, example=(bags,))
    tracker = ModelDeltaTrackerTrec(trained)
    trained(bags).values().sum().backward()
    delta = tracked_rows(tracker, trained)
    ids, rows = delta["t_item"]
    assert ids.tolist() == [1, 2, 4, 7]
    assert not torch.equal(rows, model[0].embedding_bags["t_item"].weight[ids])
    publish_delta(served, delta)
    with torch.no_grad():
        torch.testing.assert_close(served(bags).values(), trained(bags).values())


def test_tables_sharded_by_columns_have_no_whole_rows(gloo, collection_of, table_of, batch_of):
    trained = distributed(
        nn.Sequential(collection_of([table_of(dim=8)])), column_wise(ranks=[0, 0])
    )
    tracker = ModelDeltaTrackerTrec(trained)
    trained(batch_of({"item": [[1]]})).values().sum().backward()
    with pytest.raises(NotSupported, match="'t_item' is sharded by columns"):
        tracked_rows(tracker, trained)
