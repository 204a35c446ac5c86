"""Copies, graphs, moves to other types and memories, threads: each answers right or not at all."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torchrec.fx import symbolic_trace

from grace_torchrec.errors import NotSupported, StaleSums
from grace_torchrec.modules.swap import rebuild_sums_

LAYOUTS = {
    "host-fused": {},
    "split-stock": {"num_hbm_sums": 2, "hot_items": (7, 9), "lookup": "stock"},
    "hbm-fused": {"originals": "hbm", "num_hbm_sums": 5},
    "split-subsets": {"code": "subsets", "num_hbm_sums": 2, "hot_items": (7, 9)},
    "ahead-sets": {"code": "sets", "num_hbm_sums": 2, "lookup": "ahead"},
}
ROW = 3  # an item of a cluster, in every batch below


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request):
    return request.param


@pytest.fixture
def tables(table_of):
    return [table_of("t_item", features=("item", "friend")), table_of("t_page", features=("page",))]


@pytest.fixture
def batch(batch_of):
    bags = [[3, 4, 5, 7, 1, 2], [9, 3, 4], []]
    return batch_of({"item": bags, "friend": bags[::-1], "page": bags})


@pytest.fixture
def stock(collection_of, tables):
    return collection_of(tables)


@pytest.fixture
def swapped(stock, swap_of, layout):
    return swap_of(stock, **layout)


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


def test_a_deep_copy_answers_for_itself(swapped, stock, batch) -> None:
    twin = copy.deepcopy(swapped)
    torch.testing.assert_close(answer(twin, batch), answer(stock, batch))
    with torch.no_grad():
        stock.embedding_bags["t_item"].weight.add_(1)
    assert is_stale(swapped, batch)
    assert not is_stale(twin, batch)
    with torch.no_grad():
        twin.weight(0).add_(1)
    assert is_stale(twin, batch)
    rebuild_sums_(twin)
    torch.testing.assert_close(answer(twin, batch), answer(stock, batch))
    assert is_stale(swapped, batch)


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.data[ROW].add_(1),
        lambda weight: weight.detach()[ROW].add_(1),
        lambda weight: setattr(weight, "data", weight.data + 1),
    ],
    ids=["data", "in-place", "new-storage"],
)
@pytest.mark.parametrize("when", ["before the copy", "after the copy"])
def test_a_copy_changed_behind_its_back_is_caught_at_first_use(
    swapped, batch, change, when
) -> None:
    if when == "before the copy":
        change(swapped.weight(0))
    twin = copy.deepcopy(swapped)
    if when == "after the copy":
        change(twin.weight(0))
    assert is_stale(twin, batch)


def save_and_load(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "through",
    [copy.deepcopy, save_and_load, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "torch.save", "pickle"],
)
def test_copies_load_into_themselves(swapped, stock, batch, through) -> None:
    twin, before = through(swapped), answer(swapped, batch)
    torch.testing.assert_close(answer(twin, batch), before)
    twin.load_state_dict({k: v + 1 for k, v in stock.state_dict().items()})
    torch.testing.assert_close(answer(swapped, batch), before)
    assert (answer(twin, batch) != before).any()
    assert not twin.stale_tables()


def test_a_half_copy_is_rebuilt_in_half(swapped, batch) -> None:
    before = answer(swapped, batch)
    swapped.to(torch.float16)
    assert {p.dtype for p in swapped.parameters()} == {torch.float16}
    assert torch.equal(answer(swapped, batch), before)  # small whole numbers are exact in half
    assert torch.equal(answer(swapped.float(), batch), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_without_kernels_are_refused_before_a_table_is_changed(
    swapped, stock, batch, dtype
) -> None:
    with pytest.raises(NotSupported, match=f"table 't_item' is {dtype}"):
        nn.Sequential(swapped).to(dtype)
    assert {p.dtype for p in swapped.parameters()} == {torch.float32}
    assert_same_as_stock(swapped, stock, batch)


@pytest.mark.parametrize("clusters", [None, ((1, 2),)], ids=["no-sums", "sums"])
@pytest.mark.parametrize(
    "rows",
    [torch.ones(20, 4, dtype=torch.float64), torch.ones(4, 20).t()],
    ids=["double", "transposed"],
)
def test_rows_no_kernel_reads_are_refused_by_every_forward(
    stock, swap_of, batch, rows, clusters
) -> None:
    swapped = swap_of(stock, {"t_page": {"clusters": clusters}})
    stock.embedding_bags["t_page"].weight.data = rows
    for attempt in (lambda: swapped(batch), swapped.rebuild_sums, lambda: swapped(batch)):
        with pytest.raises(NotSupported, match="t_page"):
            attempt()


def test_a_rebuild_refuses_a_table_of_another_shape(swapped, stock) -> None:
    stock.embedding_bags["t_page"].weight.data = torch.zeros(3, 4)
    with pytest.raises(NotSupported, match=r"'t_page' has shape \(3, 4\), .* \(20, 4\)"):
        swapped.rebuild_sums()


def test_shared_memory_changes_no_answer(swapped, stock, batch) -> None:
    before = answer(swapped, batch)
    swapped.share_memory()
    assert all(tensor.is_shared() for tensor in (*swapped.parameters(), *swapped.buffers()))
    assert torch.equal(answer(swapped, batch), before)
    assert not swapped.stale_tables()


def test_a_round_trip_over_the_meta_device_needs_a_load(swapped, stock, batch) -> None:
    saved = {k: v + 1 for k, v in stock.state_dict().items()}
    stock.load_state_dict(saved)
    truth = answer(stock, batch)
    model = nn.Sequential(swapped)
    model.to("meta")
    assert answer(model, batch).is_meta  # no values, so none that are wrong
    model.to_empty(device="cpu")
    model.load_state_dict({f"0.{k}": v for k, v in saved.items()})
    assert torch.equal(answer(model, batch), truth)
    model.to("meta").load_state_dict({f"0.{k}": v for k, v in saved.items()}, assign=True)
    assert torch.equal(answer(model, batch), truth)


def test_codes_outlive_a_move_that_forgets_what_the_tensors_held(swapped) -> None:
    held = {name: buffer.clone() for name, buffer in swapped.named_buffers()}
    swapped._apply(torch.zeros_like)  # as to_empty does, but with contents that are known
    assert all(torch.equal(buffer, held[name]) for name, buffer in swapped.named_buffers())
    assert any(buffer.any() for buffer in held.values())


def test_inference_mode_serves_and_builds(stock, swap_of, batch, layout, collection_of, tables):
    swapped = swap_of(stock, **layout)
    with torch.inference_mode():
        assert torch.equal(swapped(batch).values(), stock(batch).values())
        born_here = collection_of(tables)
        assert born_here.embedding_bags["t_item"].weight.is_inference()
        inner = swap_of(born_here, **layout)
        assert torch.equal(inner(batch).values(), born_here(batch).values())


# Graphs


@pytest.fixture(params=["traced", "dead-code", "deepcopy", "pickled"])
def graph(request, swapped):
    traced = symbolic_trace(nn.Sequential(swapped))
    if request.param == "dead-code":
        traced.graph.eliminate_dead_code()
        traced.recompile()
    return {
        "deepcopy": copy.deepcopy,
        "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    }.get(request.param, lambda module: module)(traced)


def tables_of(graph):
    return [p for name, p in graph.named_parameters() if not name.endswith("_rows.weight")]


def test_a_graph_refuses_stale_sums(graph, swapped, batch) -> None:
    assert torch.equal(answer(graph, batch), answer(swapped, batch))
    with torch.no_grad():
        for weight in tables_of(graph):
            weight.add_(1)
    assert is_stale(graph, batch)


def test_a_graph_refuses_sums_after_a_fused_step(graph, batch) -> None:
    answer(graph, batch)
    weights = tables_of(graph)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    torch.optim.Adam(weights, fused=True).step()
    assert is_stale(graph, batch)


def test_a_graph_finds_unseen_writes(graph, swapped, batch) -> None:
    answer(graph, batch)
    for weight in tables_of(graph):
        weight.data.add_(1)
    assert any(is_stale(graph, batch) for _ in range(swapped.calls_to_check_all))


def test_a_rebuild_reaches_the_graph_that_shares_the_rows(swapped, stock, batch) -> None:
    graph = symbolic_trace(nn.Sequential(swapped))
    with torch.no_grad():
        stock.embedding_bags["t_item"].weight.add_(1)
    assert is_stale(graph, batch)
    rebuild_sums_(swapped)
    torch.testing.assert_close(answer(graph, batch), answer(stock, batch))


# Training, threads


def test_training_is_refused(swapped, stock, batch) -> None:
    swapped.train()
    with pytest.raises(NotSupported, match="inference only"):
        swapped(batch)
    assert_same_as_stock(swapped.eval(), stock, batch)


@pytest.mark.parametrize("lookup", ["fused", "stock"])
def test_a_backward_through_the_output_is_refused(stock, swap_of, batch, lookup) -> None:
    swapped = swap_of(stock, lookup=lookup)
    pooled = swapped(batch).values()
    assert pooled.requires_grad
    with pytest.raises(NotImplementedError, match="inference only"):
        pooled.sum().backward()
    assert all(p.grad is None for p in swapped.parameters())
    assert all(not p.requires_grad for n, p in swapped.named_parameters() if "_rows" in n)


def test_threads_get_the_right_answers(swapped, stock, batch_of) -> None:
    ids = torch.Generator().manual_seed(0)
    batches = []
    for size in (1, 3, 40, 200):
        bags = torch.randint(0, 20, (size, 9), generator=ids).tolist()
        batches.append(batch_of({"item": bags, "friend": bags, "page": bags}))
    wanted = [answer(stock, batch) for batch in batches]
    wrong = []

    def ask():
        for _ in range(50):
            for batch, want in zip(batches, wanted, strict=True):
                if not torch.equal(answer(swapped, batch), want):
                    wrong.append(batch)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
