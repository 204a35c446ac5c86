"""TorchRec's DLRM and our swapped one are scheduled: look-ups and bottom layers side by side."""

import pytest
import torch

grace = pytest.importorskip("grace_torchrec")
pytest.importorskip("torchrec")

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

from grace_torchrec.models.dlrm import history_dlrm  # noqa: E402
from grace_torchrec.schedule.stream_pass import schedule_  # noqa: E402
from grace_torchrec.traces.synthetic import generate  # noqa: E402

ITEMS, BATCH = 400, 32


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


@pytest.mark.parametrize("swapped", [False, True], ids=["stock", "swapped"])
def test_a_torchrec_model_is_scheduled_and_computes_the_same(swapped):
    torch.manual_seed(0)
    model, seen = history_dlrm(ITEMS, 16).eval(), batches()
    if swapped:
        profile = grace.profile(seen[:8], model)
        grace.accelerate_(model, grace.plan(model, profile, grace.MemoryModel.named("a40")))
    result = schedule_(model, seen[8], 4)
    assert result.modified, result.reason
    assert result.proof.races == ()
    kinds = {op.name: op.kind for op in result.schedule.graph.ops}
    assert "embedding" in kinds.values()
    streams = dict(zip(kinds, result.schedule.stream_n, strict=True))
    bottom = next(name for name in kinds if name.startswith("dense_arch"))
    look_up = next(name for name, kind in kinds.items() if kind == "embedding")
    assert streams[bottom] != streams[look_up]
    with torch.inference_mode():
        for batch in seen[8:11]:
            assert torch.equal(result.module(*batch), model(*batch))
