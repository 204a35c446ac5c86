"""Stored sums never answer for rows they were not built from: every way to change a table.

The writes touch one item only, whose sums the rotating sample does not reach for many calls, so
it cannot stand in for what should have noticed.
"""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from grace_torchrec.errors import StaleSums
from grace_torchrec.modules import freshness
from grace_torchrec.modules.swap import rebuild_sums_

LAYOUTS = {
    "host-fused": {},
    "split-stock": {"num_hbm_sums": 2, "hot_items": (7, 9), "lookup": "stock"},
    "hbm-fused": {"originals": "hbm", "num_hbm_sums": 5},
    "split-subsets": {"code": "subsets", "num_hbm_sums": 2, "hot_items": (7, 9)},
    "ahead-sets": {"code": "sets", "num_hbm_sums": 2, "lookup": "ahead"},
}
OPTIMIZERS = {
    "sgd-foreach": (torch.optim.SGD, {"foreach": True}),
    "sgd-loop": (torch.optim.SGD, {"foreach": False}),
    "sgd-fused": (torch.optim.SGD, {"fused": True}),
    "adam-fused": (torch.optim.Adam, {"fused": True}),
    "adagrad-fused": (torch.optim.Adagrad, {"fused": True}),
    "adamw": (torch.optim.AdamW, {}),
}
CLUSTERS = (range(6), range(6, 12))
LATE = 11  # only the last half of the sums holds it


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request):
    return request.param


@pytest.fixture
def tables(table_of):
    return [table_of("t_item", features=("item", "friend")), table_of("t_page", features=("page",))]


@pytest.fixture
def batch(batch_of):
    bags = [[3, 4, 5, 7, LATE, 2], [9, 3, LATE, 10], []]
    return batch_of({"item": bags, "friend": bags[::-1], "page": bags})


@pytest.fixture
def stock(collection_of, tables):
    return collection_of(tables)


@pytest.fixture
def swapped(stock, swap_of, layout):
    swapped = swap_of(stock, clusters=CLUSTERS, **layout)
    assert swapped.calls_to_check_all > 20
    return swapped


def only_late(weight, value=1.0):
    """Zero but for the row of the late item."""
    change = torch.zeros_like(weight)
    change[LATE] = value
    return change


def answer(module, batch):
    with torch.no_grad():
        return module(batch).values()


def is_stale(module, batch):
    try:
        answer(module, batch)
    except StaleSums:
        return True
    return False


def assert_same_as_stock(swapped, stock, batch):
    """``stock`` holds the same Parameters, so it always tells the present truth."""
    for config in stock.embedding_bag_configs():
        weight = swapped.embedding_bags[config.name].weight
        assert stock.embedding_bags[config.name].weight is weight
    torch.testing.assert_close(answer(swapped, batch), answer(stock, batch))


def heals(swapped, stock, batch):
    assert rebuild_sums_(swapped) > 0
    assert_same_as_stock(swapped, stock, batch)


# Writes that PyTorch sees


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_an_optimiser_step_makes_the_sums_stale(swapped, stock, batch, kind, options) -> None:
    answer(swapped, batch)
    weights = [bag.weight for bag in stock.embedding_bags.values()]
    optimizer = kind(weights, lr=0.5, **options)
    for weight in weights:
        weight.grad = only_late(weight)
    optimizer.step()
    assert is_stale(swapped, batch)
    heals(swapped, stock, batch)
    optimizer.step()
    assert is_stale(swapped, batch)


def test_a_fused_step_hides_from_the_version_counter(stock) -> None:
    # why the step hook is there; if this fails, the hook became a second line of defence
    weight = stock.embedding_bags["t_item"].weight
    before, weight.grad = weight._version, torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.5, fused=True).step()
    assert weight._version == before


def test_an_optimiser_of_other_parameters_changes_nothing(swapped, batch) -> None:
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    torch.optim.Adam([other], fused=True).step()
    assert not is_stale(swapped, batch)


def test_an_optimiser_over_the_swapped_model_leaves_stored_rows_alone(swapped, batch) -> None:
    derived = {n: p for n, p in swapped.named_parameters() if n.endswith("_rows.weight")}
    before = copy.deepcopy(derived)
    optimizer = torch.optim.SGD(swapped.parameters(), lr=0.5, fused=True)
    for table in range(2):
        swapped.weight(table).grad = only_late(swapped.weight(table))
    optimizer.step()
    assert all(torch.equal(rows, before[name]) for name, rows in derived.items())
    assert is_stale(swapped, batch)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.copy_(weight + only_late(weight)),
        lambda weight: weight[LATE].zero_(),
        lambda weight: torch._foreach_add_([weight], [only_late(weight)]),
        lambda weight: weight.detach().add_(only_late(weight)),
        lambda weight: nn.init.constant_(weight[LATE], 9),
    ],
    ids=["copy_", "row-view", "foreach", "detached", "init"],
)
def test_a_write_in_place_makes_the_sums_stale(swapped, stock, batch, write, guard) -> None:
    answer(swapped, batch)
    with guard():
        write(stock.embedding_bags["t_page"].weight)
    with pytest.raises(StaleSums, match=r"'t_page': .*written to; call .*rebuild_sums_\(model\)"):
        swapped(batch)  # the ops, for somebody might ask for gradients
    assert is_stale(swapped, batch)
    heals(swapped, stock, batch)


def test_a_write_to_the_stored_rows_makes_them_stale(swapped, stock, batch) -> None:
    answer(swapped, batch)
    with torch.no_grad():
        swapped.stored(1, "host")[-1] += 1
    with pytest.raises(StaleSums, match="'t_page': its stored rows were written to"):
        swapped(batch)
    heals(swapped, stock, batch)


def test_a_new_storage_makes_the_sums_stale(swapped, stock, batch) -> None:
    weight = stock.embedding_bags["t_item"].weight
    address = weight.data_ptr()
    answer(swapped, batch)
    weight.data = weight + only_late(weight)
    assert is_stale(swapped, batch)
    for _ in range(100):
        weight.data = weight.data.clone()
        assert weight.data_ptr() != address
        assert is_stale(swapped, batch)
    heals(swapped, stock, batch)


def test_no_other_table_gets_the_address_until_the_sums_are_rebuilt(swapped, stock) -> None:
    weight = stock.embedding_bags["t_item"].weight
    rows = weight.detach().numpy().copy()
    weight.data = torch.from_numpy(rows)
    rebuild_sums_(swapped)
    memory = weakref.ref(rows)
    del rows
    weight.data = weight + only_late(weight)
    assert memory() is not None
    rebuild_sums_(swapped)
    assert memory() is None  # and it is not kept longer


def test_another_parameter_over_the_same_memory_is_another_table(swapped, stock, batch) -> None:
    bag = stock.embedding_bags["t_item"]
    answer(swapped, batch)
    alias = nn.Parameter(bag.weight.data)
    with torch.no_grad():
        while alias._version < bag.weight._version:  # its counter ends where the old one stands
            alias.add_(only_late(alias))
    swapped.embedding_bags["t_item"].weight = alias
    bag.weight = alias
    assert is_stale(swapped, batch)
    heals(swapped, stock, batch)


def test_averages_of_weights_make_the_averaged_sums_stale(swapped, stock, batch) -> None:
    model = nn.Sequential(swapped)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)).eval()
    average.update_parameters(model)
    before = answer(swapped, batch)
    with torch.no_grad():
        stock.embedding_bags["t_item"].weight.add_(4)
    rebuild_sums_(model)
    torch.testing.assert_close(answer(average, batch), before)
    average.update_parameters(model)
    assert is_stale(average, batch)
    rebuild_sums_(average)
    torch.testing.assert_close(answer(average, batch), (before + answer(swapped, batch)) / 2)


def test_a_manual_average_makes_the_sums_stale(swapped, stock, batch) -> None:
    answer(swapped, batch)
    teacher = {k: v + only_late(v) for k, v in stock.state_dict().items()}
    with torch.no_grad():
        for name, bag in swapped.embedding_bags.items():
            bag.weight.lerp_(teacher[f"embedding_bags.{name}.weight"], 0.25)
    assert is_stale(swapped, batch)
    heals(swapped, stock, batch)


# Writes that PyTorch does not see


@pytest.mark.parametrize(
    "write",
    [lambda w: w.data[LATE].fill_(9), lambda w: w.detach().numpy().__setitem__(LATE, 9)],
    ids=["data", "numpy"],
)
def test_an_unseen_write_is_found_by_the_rotating_sample(swapped, stock, batch, write) -> None:
    calls = swapped.calls_to_check_all
    for _ in range(calls // 2):  # somewhere inside a round
        answer(swapped, batch)
    write(stock.embedding_bags["t_item"].weight)
    assert "is not the sum" in swapped.stale_tables()["t_item"]
    assert "t_page" not in swapped.stale_tables()
    assert any(is_stale(swapped, batch) for _ in range(calls))
    heals(swapped, stock, batch)
    assert not swapped.stale_tables()


def test_the_sample_goes_round_and_finds_a_late_write_too(stock, swap_of, batch) -> None:
    swapped = swap_of(stock, clusters=[range(6)])
    for _ in range(3 * swapped.calls_to_check_all + 1):
        answer(swapped, batch)
    stock.embedding_bags["t_item"].weight.data[5] += 1
    assert any(is_stale(swapped, batch) for _ in range(swapped.calls_to_check_all))


def test_every_stored_row_is_compared_once_in_a_round(stock, swap_of, batch) -> None:
    swapped = swap_of(stock, clusters=[range(5)])
    stored, calls = swapped.stored(0, "host"), swapped.calls_to_check_all
    for row in range(stored.shape[0]):
        assert not is_stale(swapped, batch)
        stored.data[row, 0] += 1  # nothing else sees this write: only the sample of this row
        assert sum(is_stale(swapped, batch) for _ in range(calls)) > 0, f"row {row}"
        swapped.rebuild_sums()


def test_a_call_compares_a_few_rows_whatever_the_table_holds() -> None:
    rows = [freshness.rows_a_sample(num_rows) for num_rows in (1, 4, 10**5, 10**7, 10**9)]
    assert rows == sorted(rows)
    assert (rows[0], rows[-1]) == (freshness.LEAST_ROWS, freshness.MOST_ROWS)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("values", [1e-3, 1.0, 1e3])
def test_rounding_alone_is_never_stale(
    table_of, collection_of, swap_of, batch_of, dtype, values
) -> None:
    stock = collection_of([table_of(dtype=dtype)], whole=False)
    with torch.no_grad():
        stock.embedding_bags["t_item"].weight.mul_(values)
    swapped = swap_of(stock, clusters=[range(8), range(8, 16)])
    batch = batch_of({"item": [[0, 1, 2]]})
    for _ in range(swapped.calls_to_check_all):
        answer(swapped, batch)
    assert not swapped.stale_tables()


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_tables_with_nan_and_infinity_are_not_stale_for_that(
    table_of, collection_of, swap_of, batch_of, dtype
) -> None:
    stock = collection_of([table_of(dtype=dtype)])
    with torch.no_grad():
        rows = stock.embedding_bags["t_item"].weight
        rows[0], rows[1], rows[2], rows[3:5] = torch.nan, torch.inf, -torch.inf, 6e4
    swapped = swap_of(stock, clusters=[range(5)])  # 6e4 + 6e4 is beyond the largest half
    assert not swapped.stale_tables()
    batch = batch_of({"item": [[1, 1], [2, 5], [1, 2], [0], [3, 4]]})
    torch.testing.assert_close(answer(swapped, batch), answer(stock, batch), equal_nan=True)
    rows.data[0] = 0
    assert swapped.stale_tables()
