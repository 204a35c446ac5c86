"""TorchRec's DLRM, stock or swapped, is scheduled: lookups and bottom layers side by side."""

import pytest
import torch

grace = pytest.importorskip("grace_torchrec")
pytest.importorskip("torchrec")

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

from grace_sharding.memory_tiers import MemoryModel, Tier  # noqa: E402
from grace_torchrec.models.dlrm import history_dlrm  # noqa: E402
from grace_torchrec.schedule.stream_pass import schedule_  # noqa: E402
from grace_torchrec.traces.synthetic import generate  # noqa: E402

ITEMS, BATCH = 400, 32
HBM_BYTES = 65_000  # both tables and some sums: the other sums lie in host memory
LOOK_UPS = {  # how a plan looks rows up -> operators that do it
    "not swapped": {"sparse_arch_embedding_bag_collection"},
    "fused": {"pooled_lookup"},
    "stock": {f"sparse_arch_embedding_bag_collection_{tier}" for tier in ("hbm", "host")},
}


def batches():
    """Batches of histories and one candidate each."""
    trace = generate(ITEMS, 600, seed=1)
    found = []
    for first in range(0, trace.num_bags - BATCH, BATCH):
        bags = torch.from_numpy(trace.offsets_B1[first : first + BATCH + 1])
        history = torch.from_numpy(trace.ids_L[bags[0] : bags[-1]])
        values = torch.cat([history, torch.arange(BATCH) % ITEMS])
        lengths = torch.cat([bags.diff(), torch.ones(BATCH, dtype=torch.int64)])
        kjt = KeyedJaggedTensor(keys=["history", "candidate"], values=values, lengths=lengths)
        found.append((torch.rand(BATCH, 13), kjt))
    return found


@pytest.mark.parametrize("lookup", LOOK_UPS)
def test_a_torchrec_model_is_scheduled_and_computes_the_same(lookup):
    torch.manual_seed(0)
    model, seen = history_dlrm(ITEMS, 16).eval(), batches()
    if lookup != "not swapped":
        options = grace.PlanOptions(lookup=lookup, objective="cut", methods=("grace",))
        tiers = (Tier("hbm", HBM_BYTES, 20e9), Tier("host", 10**9, 20e9))
        memory = MemoryModel("small HBM", tiers)
        plan = grace.plan(model, grace.profile(seen[:8], model), memory, options=options)
        assert grace.accelerate_(model, plan).modules
    result = schedule_(model, seen[8], 4)
    assert result.modified, result.reason
    assert result.proof.races == ()
    kinds = {op.name: op.kind for op in result.schedule.graph.ops}
    streams = dict(zip(kinds, result.schedule.stream_n, strict=True))
    bottom = next(name for name in kinds if name.startswith("dense_arch"))
    assert {name for name, kind in kinds.items() if kind == "embedding"} == LOOK_UPS[lookup]
    assert ("rewrite_bags" in kinds) == (lookup == "stock")  # the fused operator rewrites itself
    assert {streams[name] for name in LOOK_UPS[lookup]} != {streams[bottom]}
    with torch.inference_mode():
        for batch in seen[8:11]:
            assert torch.equal(result.module(*batch), model(*batch))
