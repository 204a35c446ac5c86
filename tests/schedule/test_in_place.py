"""Models that write in place: on several streams they compute, and leave behind, what they did."""

from dataclasses import replace

import pytest
import torch
from delayed_streams import DelayedStreams
from torch import nn
from torch.nn import functional
from worker_program import WorkerProgram

from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.observed import observed_races
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.profiling import profile_cpu
from grace_torchrec.schedule.resources import resource_pins
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import carried_out, requires, schedule_

WIDTH = 4


class Arms(nn.Module):
    """Readers, then a write, then a reader; what is written and how differs."""

    def __init__(self):
        super().__init__()
        self.arms = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        base, other = self.base(x), self.right(x)
        early = [arm(base) for arm in self.arms]
        out = self.last(self.write(base, other))
        for arm in early:
            out = out + arm
        return out, other

    def base(self, x):
        return self.left(x)


class Input(Arms):
    def base(self, x):
        return x


class InputByKeyword(Input):
    def write(self, base, other):
        return functional.relu(base, inplace=True)


class InputByPosition(Input):
    def write(self, base, other):
        return functional.relu(base, True)


class InputByModule(Input):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def write(self, base, other):
        return self.relu(base)


class InputFirst(Input):
    def base(self, x):
        return x.clamp_(min=0)

    def write(self, base, other):
        return other + 1


class PartOfInput(Input):
    def write(self, base, other):
        base.t()[1:3].mul_(2)
        return base


class ViewOfTwo(Arms):
    def write(self, base, other):
        return base.view_as(other).relu_()


class ViewOfTwoKept(Arms):
    def write(self, base, other):
        shown = base.view_as(other)
        base.relu_()
        return shown


class ViewOfAView(Arms):
    def write(self, base, other):
        base.view(-1).view_as(other).t().relu_()
        return base


class InputAsOperator(Input):
    def write(self, base, other):
        base.view_as(other).relu_()
        return base


class Out(Arms):
    def write(self, base, other):
        return torch.add(other, 1, out=base)


class OutOfTwo(Arms):
    def write(self, base, other):
        places = torch.argsort(other)
        torch.sort(other, out=(base, places))
        return base + places


class Put(Arms):
    def write(self, base, other):
        base.index_put_((torch.tensor([0]),), other[:1])
        return base


class Parts(Arms):
    def write(self, base, other):
        first, second = base.split(2, 1)
        first.mul_(2)
        return torch.cat([first, second], 1)


class Rows(Arms):
    def write(self, base, other):
        base.unbind(0)[0].mul_(2)
        return base


class Foreach(Arms):
    def write(self, base, other):
        torch._foreach_mul_([base, other], 2.0)
        return base + other


class Power(Arms):
    def write(self, base, other):
        base //= other
        return base


class Quiet(nn.Module):
    """Writes what it is given and does not say so."""

    mutable_resources = ()  # stays one node

    def forward(self, x):
        x.mul_(2)
        return x * 3


class QuietModule(Arms):
    def __init__(self):
        super().__init__()
        self.quiet = Quiet()

    def write(self, base, other):
        return self.quiet(base)


class QuietInput(QuietModule, Input):
    pass


class HandsOn(nn.Module):
    """Returns what it is given beside a value of its own."""

    mutable_resources = ()

    def forward(self, x):
        return x, x + 1


class HandedOn(Arms):
    def __init__(self):
        super().__init__()
        self.pair = HandsOn()

    def write(self, base, other):
        same, own = self.pair(base)
        same.relu_()
        return base + own


class Buffer(Arms):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, WIDTH))

    def base(self, x):
        self.kept.copy_(x)
        return self.kept

    def write(self, base, other):
        self.kept.view_as(other).add_(1)
        return base


class Listed(nn.Module):
    """Keeps tensors in a plain list and writes them."""

    mutable_resources = ()

    def __init__(self, kept):
        super().__init__()
        self.kept = [kept]

    def forward(self, x):
        return self.kept[0].copy_(x) + 1


class PlainAttribute(Arms):
    def __init__(self):
        super().__init__()
        kept = torch.zeros(3, WIDTH)
        self.first, self.second = Listed(kept), Listed(kept)

    def write(self, base, other):
        return self.first(base) + self.second(other)


KINDS = [
    InputByKeyword, InputByPosition, InputByModule, InputFirst, PartOfInput, InputAsOperator, ViewOfTwo,
    ViewOfTwoKept, ViewOfAView, Out, OutOfTwo, Put, Parts, Rows, Foreach, Power, QuietModule,
    QuietInput, HandedOn, Buffer, PlainAttribute,
]  # fmt: skip


def made(kind):
    torch.manual_seed(0)
    return kind().eval()


def even_costs(graph, late=()):
    return OpStats.of(
        graph, [OpStat(90.0 if op.name in late else 9.0) for op in graph.ops], "json", ""
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_what_is_left_behind_are_those_of_the_model(kind):
    model, example = made(kind), torch.rand(3, WIDTH)
    before = example.clone()
    _, graph = requires(model, (example,), {}, {})
    arms = [op.name for op in graph.ops if op.name.startswith("arms")]
    for late in (arms, ()):
        result = schedule_(model, (example,), 3, stats=even_costs(graph, late), wait_us=0.1)
        assert torch.equal(example, before)
        assert result.modified, result.reason
        assert result.schedule.num_streams > 1
        assert observed_races(result.module, (example,)) == []
        given, other = torch.randn(2, 3, WIDTH), None
        for batch in given:
            other = batch.clone()
            wanted, found = model(batch), result.module(other)
            assert all(map(torch.equal, wanted, found))
            assert torch.equal(batch, other)


def forgetful(op, graph, writers):
    """The operator as it was when writers in place forgot the arms that had read before."""
    if op.name not in writers:
        return op
    needs = tuple(need for need in op.needs if not graph.ops[need].name.startswith("arms"))
    return replace(op, needs=needs, in_place_of=-1)


@torch.no_grad()
@pytest.mark.parametrize("kind", [InputByPosition, ViewOfTwo, Out])
def test_streams_that_really_run_beside_each_other_keep_the_order(kind):
    model, batch = made(kind), torch.randn(3, WIDTH)
    _, graph = requires(model, (batch,), {}, {})
    arms = [op.name for op in graph.ops if op.name.startswith("arms")]
    result = schedule_(model, (batch,), 3, stats=even_costs(graph, arms), wait_us=0.1)
    program = WorkerProgram(result.module)
    wanted = model(batch.clone())
    for slow in range(3):
        with DelayedStreams(result.schedule.num_streams, 300, slow, slow) as workers:
            assert all(map(torch.equal, program.run(workers, batch.clone()), wanted))


def test_writes_are_seen_in_inference_mode_too():
    model = made(InputByPosition)
    with torch.inference_mode():
        _, graph = requires(model, (torch.rand(3, WIDTH),), {}, {})
    relu = next(op for op in graph.ops if op.name == "relu")
    assert {graph.ops[need].name for need in relu.needs} >= {f"arms_{arm}" for arm in range(5)}


def test_an_example_that_has_gradients_is_copied():
    x = torch.ones(2, requires_grad=True) * 2
    same, again = cloned((x, x))
    assert torch.equal(same, x)
    assert same.data_ptr() == again.data_ptr() != x.data_ptr()


@torch.no_grad()
@pytest.mark.parametrize("cost", [profile_cpu, roofline, schedule_])
def test_the_batch_of_the_caller_stays_as_it_was(cost):
    given = torch.randn(3, WIDTH)
    before = given.clone()
    model = made(InputByPosition)
    if cost is schedule_:
        cost(model, (given,))
    else:
        cost(*requires(model, (given,), {}, {}), (given,))
    assert torch.equal(given, before)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "writers"),
    [(ViewOfTwo, ["relu_"]), (Out, ["add"]), (QuietModule, ["quiet"]), (InputByPosition, ["relu"])],
)
def test_operators_that_forget_a_reader_are_told_by_the_run(kind, writers):
    model, example = made(kind), (torch.randn(3, WIDTH),)
    gm, graph = requires(model, example, {}, {})
    forgot = OpGraph(graph.name, tuple(forgetful(op, graph, writers) for op in graph.ops))
    costs = even_costs(forgot, [op.name for op in forgot.ops if op.name.startswith("arms")])
    schedule = make_schedule(forgot, costs, Machine(3, 0.1))
    found = carried_out(gm, schedule, costs, example)
    assert not found.modified
    assert found.module is gm
    assert "computes other values" in found.reason or "have no order" in found.reason
    assert observed_races(to_graph_module(gm, lower(schedule)), example)


@torch.no_grad()
def test_a_weight_that_is_written_keeps_its_users_on_one_stream():
    _, graph = requires(made(Buffer), (torch.rand(3, WIDTH),), {}, {})
    users = {op.name for op in graph.ops if "memory of kept" in (*op.reads, *op.writes)}
    arms = {f"arms_{number}" for number in range(5)}
    assert users == arms | {"copy_", "view_as", "add_", "last"}
    assert len(set(resource_pins(graph, even_costs(graph), 3).values())) == 1


def test_a_copy_that_is_called_a_view_has_memory_of_its_own():
    class Copied(nn.Module):
        def forward(self, x):
            y = torch.tanh(x)
            return y.t().contiguous() + 1, y.view(-1).float()

    _, graph = requires(Copied().eval(), (torch.rand(2, 3),), {}, {})
    assert [op.nodes for op in graph.ops] == [
        ("tanh", "t", "view", "float_1"),
        ("contiguous",),
        ("add",),
    ]
