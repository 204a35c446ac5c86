"""Splitting off the dense part, and the replay of a fixed schedule on shared processors."""

import random

import pytest
import torch
from torch import nn
from torchrec import KeyedTensor

from bench.scheduling.random_graphs import random_problem
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.backends import CudaBackend
from grace_torchrec.schedule.capture import (
    DENSE,
    capture_dense_,
    copy_in,
    dense_inputs,
    refuse_written_inputs,
    split_dense,
)
from grace_torchrec.schedule.copied import cloned, tensors_in
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.replay import replay_us
from grace_torchrec.schedule.same_values import same_values
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.tracing import op_graph


@pytest.mark.parametrize("name", MODELS)
def test_both_parts_together_are_the_model_and_the_dense_one_takes_tensors(name):
    example = bundled(name, batch=3, batches=2)
    split = split_dense(example.model, example.batches[0])
    dense = split.get_submodule(DENSE)
    assert all(op.kind != "embedding" for op in op_graph(dense).ops)
    inputs = dense_inputs(split, example.batches[0])
    assert all(isinstance(value, torch.Tensor) for value in inputs)
    schedule_(dense, inputs, 4)
    with torch.inference_mode():
        for batch in example.batches:
            assert torch.equal(split(*batch), example.model(*batch))


class Hashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(10, 4), nn.Linear(4, 1)

    def forward(self, ids):
        return torch.sigmoid(self.top(self.table(torch.remainder(ids, 10))))


def test_what_an_embedding_needs_comes_with_it():
    model, ids = Hashed().eval(), torch.tensor([3, 25])
    split = split_dense(model, (ids,))
    assert [op.name for op in op_graph(split.get_submodule(DENSE)).ops] == ["top", "sigmoid"]
    assert torch.equal(split(ids), model(ids))


def test_a_model_without_two_parts_is_refused():
    with pytest.raises(NotSupported, match="no embeddings"):
        split_dense(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (torch.ones(1, 2),))
    with pytest.raises(NotSupported, match="nothing but embeddings"):
        split_dense(nn.Sequential(nn.Embedding(4, 2)).eval(), (torch.tensor([1]),))


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(10, 4), nn.Linear(4, 1)

    def forward(self, ids, dense):
        dense.clamp_(min=0)
        return self.top(self.table(ids) + dense)


def test_a_dense_part_that_writes_its_inputs_is_not_captured():
    batch = (torch.tensor([3]), -torch.ones(1, 4))
    split = split_dense(Clamped().eval(), batch)
    assert (batch[1] == -1).all()
    dense = split.get_submodule(DENSE)
    with pytest.raises(NotSupported, match="'clamp_' writes an input in place"):
        refuse_written_inputs(dense, dense_inputs(split, cloned(batch)))
    plain = split_dense(Hashed().eval(), batch[:1])
    refuse_written_inputs(plain.get_submodule(DENSE), dense_inputs(plain, batch[:1]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            (torch.ones(1, 3), 2),
            r"input 0 is \(\(1, 3\), 'torch.float32'\), it was captured for \(\(4, 3\)",
        ),
        ((torch.ones(4, 3).double(), 2), "input 0 is .*float64"),
        ((torch.ones(4, 3), 3), "input 1 is 3, it was captured for 2"),
        ((torch.ones(4, 3), torch.ones(1)), "input 1 is"),
        ((torch.ones(4, 3),), "got 1 inputs, it was captured with 2"),
    ],
)
def test_a_batch_of_other_shapes_is_refused_and_not_repeated(given, message):
    captured = (torch.zeros(4, 3), 2)
    with pytest.raises(GraceError, match=message):
        copy_in(captured, given)
    assert not captured[0].any()
    copy_in(captured, (torch.ones(4, 3), 2))
    assert captured[0].all()


def keyed(fill, keys=("a", "b")):
    """Return a batch of embeddings by name."""
    return KeyedTensor(list(keys), [1, 2], torch.full((4, 3), fill))


@pytest.mark.parametrize(
    "made",
    [
        lambda fill: {"u": torch.full((2, 3), fill), "k": 2},
        lambda fill: [torch.full((2, 3), fill), (torch.full((1,), fill), None)],
        keyed,
    ],
)
def test_a_batch_in_containers_is_copied_in(made):
    captured, given = (made(0.0),), (made(1.0),)
    copy_in(captured, given)
    assert same_values(captured, given)


@pytest.mark.parametrize(
    ("captured", "given", "message"),
    [
        (
            {"u": torch.zeros(2)},
            {"u": torch.ones(1)},
            r"input 0 is dict of \['u'\]: \(\(1,\), .*for dict",
        ),
        ({"u": torch.zeros(2)}, {"v": torch.ones(2)}, r"is dict of \['v'\].*for dict of \['u'\]"),
        ([torch.zeros(2)], torch.ones(2), r"input 0 is \(\(2,\)"),
        (keyed(0.0), keyed(1.0, "bc"), r"is KeyedTensor of \(\['b', 'c'\]"),
    ],
)
def test_a_batch_in_other_containers_is_refused(captured, given, message):
    with pytest.raises(GraceError, match=message):
        copy_in((captured,), (given,))
    assert not any(tensor.any() for tensor in tensors_in(captured))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_needs_a_gpu_says_so():
    example = bundled("bst", batch=2)
    with pytest.raises(NotSupported, match="no GPU here"):
        capture_dense_(example.model, example.batches[0])
    with pytest.raises(NotSupported, match="no GPU here"):
        CudaBackend(4)


def test_without_sharing_a_replay_takes_the_makespan():
    rng = random.Random(0)
    for _ in range(30):
        graph, stats, _ = random_problem(rng, 5, 20)
        schedule = make_schedule(graph, stats, Machine(3, wait_us=1.0), starts=4, steps=4)
        alone = replay_us(schedule, [1] * len(graph.ops), 10**6)
        assert alone == pytest.approx(schedule.makespan_us)
        assert replay_us(schedule, stats.grids, 56) >= alone - 1e-6


def test_two_whole_gpus_take_turns():
    graph = OpGraph.from_needs([[], []])
    stats = OpStats.of(graph, [OpStat(5.0), OpStat(7.0)], "json", "")
    schedule = make_schedule(graph, stats, Machine(2))
    assert replay_us(schedule, [56, 56], 56) == pytest.approx(12)
    assert replay_us(schedule, [28, 28], 56) == pytest.approx(7)
    assert replay_us(schedule, [28, 28], 56, interference=0.5) > 7
