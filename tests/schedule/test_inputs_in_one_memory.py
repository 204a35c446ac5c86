"""Inputs that lie in one memory: a caller may pass one tensor twice, or two views of one.

The example of a schedule does not show it; a model that writes one input has to wait for readers of
all others.
"""

import pytest
import torch
from torch import nn

from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.stream_pass import requires, schedule_

WIDTH = 4


class Two(nn.Module):
    """Arms read one input, another input is written."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.arms = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, y):
        if self.order == "write first":
            written = x.mul_(2.0)
            early = [arm(y) for arm in self.arms]
        else:
            early = [arm(y) for arm in self.arms]
            written = torch.sin_(x)
        return early[0] + early[1] + early[2] + early[3], self.arms[0](written)


def same(x):
    return x, x


def turned(x):
    return x, x.flip(0)  # memory of its own


def views(x):
    return x[:3], x[1:4]


@torch.no_grad()
@pytest.mark.parametrize("order", ["write first", "read first"])
@pytest.mark.parametrize("pair", [same, turned, views])
@pytest.mark.parametrize("late", [True, False])
def test_what_is_passed_twice_is_read_and_written_in_the_order_of_the_model(order, pair, late):
    torch.manual_seed(0)
    model = Two(order).eval()
    example = torch.rand(4, WIDTH), torch.rand(4, WIDTH)
    _, graph = requires(model, example, {}, {})
    slow = [late == op.name.startswith("arms") for op in graph.ops]
    costs = OpStats.of(graph, [OpStat(90.0 if is_slow else 9.0) for is_slow in slow], "json", "")
    result = schedule_(model, example, 3, stats=costs, wait_us=0.1)
    assert result.modified, result.reason
    batch = torch.randn(4, WIDTH)
    given = batch.clone()
    wanted = model(*pair(given))
    other = batch.clone()
    assert all(map(torch.equal, result.module(*pair(other)), wanted))
    assert torch.equal(given, other)
    (write,) = [op for op in graph.ops if not op.name.startswith(("arms", "add"))]
    early = [op for op in graph.ops if op.name.startswith("arms")][:4]
    number = {op.name: at for at, op in enumerate(graph.ops)}
    if order == "write first":
        assert all(number[write.name] in arm.needs for arm in early)
    else:
        assert {number[arm.name] for arm in early} <= set(write.needs)


@torch.no_grad()
def test_models_that_write_no_input_lose_nothing_by_it():
    class Reads(Two):
        def forward(self, x, y):
            made = self.arms[0](x)
            return made.mul_(2.0), self.arms[1](y), self.arms[2](x)

    _, graph = requires(Reads("").eval(), (torch.rand(4, WIDTH), torch.rand(4, WIDTH)), {}, {})
    arms = [op for op in graph.ops if op.name.startswith("arms")]
    assert all(op.needs == () for op in arms)
