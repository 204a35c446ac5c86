"""Checkpoints of a swapped model are checkpoints of the stock model, both ways."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as distributed
from torchrec import EmbeddingBagCollection

from grace_torchrec.errors import NotSupported, StaleSums
from grace_torchrec.modules.swap import accelerate_, rebuild_sums_, restore_

LAYOUTS = {
    "host-fused": {},
    "split-stock": {"num_hbm_sums": 2, "hot_items": (7, 9), "lookup": "stock"},
    "hbm-fused": {"originals": "hbm", "num_hbm_sums": 3},
    "mixed": {"lookup": "stock"},
    "subsets": {"code": "subsets", "num_hbm_sums": 2},
    "ahead-sets": {"code": "sets", "lookup": "ahead", "num_hbm_sums": 2},
}
STOCK = {"originals": "host", "num_hbm_sums": 0, "hot_items": ()}
IN_HBM = {"originals": "hbm", "num_hbm_sums": 5}
TABLES = ("t_item", "t_page")
BAGS = [[3, 4, 5, 7, 1, 2], [9, 3, 4], []]


class Recommender(nn.Module):
    """A collection between other modules; their names look like those inside a swapped one."""

    def __init__(self, collection: EmbeddingBagCollection, other: EmbeddingBagCollection) -> None:
        super().__init__()
        self.before = nn.Linear(2, 2)
        self.ghost = other
        self.ebc = collection
        self.host = nn.ModuleDict({"embedding_bags": nn.ModuleDict({"t": nn.EmbeddingBag(2, 2)})})
        self.after = nn.BatchNorm1d(3)

    def forward(self, bags):
        return self.ebc(bags).values()


@pytest.fixture(scope="session")
def model_of(table_of, collection_of):
    """Return a function from a seed to a stock model."""

    def make(seed=0):
        torch.manual_seed(seed)
        tables = [table_of(name, features=(name.removeprefix("t_"),)) for name in TABLES]
        other = collection_of([table_of("t_other", features=("other",))], seed=seed)
        return Recommender(collection_of(tables, seed=seed), other).eval()

    return make


@pytest.fixture(scope="session")
def swap(model_plan):
    """Return a function that swaps the collection ``ebc`` of a model in the layout of a name."""

    def make(model, name):
        by_table = {"t_other": {**STOCK, "clusters": None, "lookup": "stock"}}
        if name == "mixed":
            by_table["t_page"] = IN_HBM
        plan = model_plan(model, by_table, **LAYOUTS[name])
        return model, accelerate_(model, plan)

    return make


@pytest.fixture(params=LAYOUTS)
def swapped(request, model_of, swap):
    return swap(model_of(), request.param)[0]


@pytest.fixture
def batch(batch_of):
    return batch_of({"item": BAGS, "page": BAGS[::-1]})


def answer(model, batch):
    with torch.no_grad():
        return model(batch)


def test_the_keys_are_exactly_the_stock_keys_in_order(swapped, model_of) -> None:
    stock = model_of()
    assert list(swapped.state_dict()) == list(stock.state_dict())
    assert list(swapped.ebc.state_dict()) == list(stock.ebc.state_dict())
    for key, value in swapped.ebc.state_dict().items():
        assert torch.equal(value, stock.ebc.state_dict()[key])


def test_a_stock_checkpoint_loads_strictly_and_the_sums_follow(swapped, model_of, batch) -> None:
    trained = model_of(5)
    old = answer(swapped, batch)
    result = swapped.load_state_dict(trained.state_dict())
    assert str(result) == "<All keys matched successfully>"
    assert torch.equal(answer(swapped, batch), answer(trained, batch))
    assert (answer(swapped, batch) != old).any()
    assert not swapped.ebc.stale_tables()


def test_a_swapped_checkpoint_loads_into_the_stock_model(swapped, model_of, batch) -> None:
    stock = model_of(5)
    assert str(stock.load_state_dict(swapped.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(answer(stock, batch), answer(swapped, batch))


def test_a_file_holds_the_stock_tensors_and_nothing_stored(swapped, model_of, tmp_path) -> None:
    torch.save(swapped.state_dict(), tmp_path / "swapped.pt")
    held = torch.load(tmp_path / "swapped.pt", weights_only=True)
    stock = model_of().state_dict()
    assert {k: v.shape for k, v in held.items()} == {k: v.shape for k, v in stock.items()}
    storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in held.values()}
    assert sum(storages.values()) == sum(v.nbytes for v in held.values())


def test_the_state_dict_shares_the_rows_as_in_the_stock_model(swapped) -> None:
    for name in TABLES:
        weight = swapped.ebc.embedding_bags[name].weight
        assert swapped.state_dict()[f"ebc.embedding_bags.{name}.weight"].data_ptr() == (
            weight.data_ptr()
        )
        assert swapped.state_dict(keep_vars=True)[f"ebc.embedding_bags.{name}.weight"] is weight


@pytest.mark.parametrize("present", TABLES)
def test_a_partial_load_rebuilds_what_it_changed(swapped, model_of, batch, present) -> None:
    expected = model_of()
    key = f"ebc.embedding_bags.{present}.weight"
    part = {key: model_of(5).state_dict()[key]}
    wanted, result = (m.load_state_dict(part, strict=False) for m in (expected, swapped))
    assert sorted(result.missing_keys) == sorted(wanted.missing_keys)
    assert result.unexpected_keys == []
    assert torch.equal(answer(swapped, batch), answer(expected, batch))
    assert not swapped.ebc.stale_tables()


def test_a_load_with_assign_rebuilds_and_can_be_undone(swapped, model_of, batch) -> None:
    trained = model_of(5)
    state = copy.deepcopy(trained.state_dict())
    swapped.load_state_dict(state, assign=True)
    weight = swapped.ebc.embedding_bags["t_item"].weight
    assert weight.data_ptr() == state["ebc.embedding_bags.t_item.weight"].data_ptr()
    assert torch.equal(answer(swapped, batch), answer(trained, batch))
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(StaleSums, match="t_item"):
        swapped(batch)


def test_a_load_with_assign_may_bring_half_rows(swapped, model_of, batch) -> None:
    trained = model_of(5)
    half = {k: v.half() for k, v in trained.state_dict().items() if k.startswith("ebc.")}
    swapped.load_state_dict(half, strict=False, assign=True)
    assert {p.dtype for p in swapped.ebc.parameters()} == {torch.float16}
    assert torch.equal(answer(swapped, batch), answer(trained, batch))  # whole numbers


def test_a_load_with_assign_of_a_type_without_kernels_is_refused(swapped, model_of, batch) -> None:
    double = {k: v.double() for k, v in model_of().state_dict().items()}
    with pytest.raises(NotSupported, match=r"'t_item' is torch\.float64"):
        swapped.load_state_dict(double, assign=True)
    with pytest.raises(NotSupported, match=r"'t_item' is torch\.float64"):
        swapped(batch)
    swapped.load_state_dict(model_of().state_dict(), assign=True)
    assert torch.equal(answer(swapped, batch), answer(model_of(), batch))


def test_what_is_missing_or_unexpected_has_its_stock_name(swapped, model_of) -> None:
    wrong = dict(model_of().state_dict())
    wanted = [*wrong]
    wrong = {
        k.replace("t_page", "t_pages").replace("t_other", "others"): v for k, v in wrong.items()
    }
    result = swapped.load_state_dict(wrong, strict=False)
    stock = model_of().load_state_dict(wrong, strict=False)
    assert sorted(result.missing_keys) == sorted(stock.missing_keys)
    assert sorted(result.unexpected_keys) == sorted(stock.unexpected_keys)
    assert set(result.missing_keys) < set(wanted)
    with pytest.raises(RuntimeError) as caught:
        swapped.load_state_dict(wrong)
    assert "_rows" not in str(caught.value)


@pytest.mark.parametrize("tier", ["host", "hbm"])
def test_names_from_the_inside_are_unexpected(swapped, model_of, tier) -> None:
    state = model_of().state_dict()
    inner = f"ebc.{tier}.embedding_bags.t_item.weight"
    state[inner] = state.pop("ebc.embedding_bags.t_item.weight")
    result = swapped.load_state_dict(state, strict=False)
    assert result.missing_keys == ["ebc.embedding_bags.t_item.weight"]
    assert result.unexpected_keys == [inner]


def test_a_wrong_shape_is_told_by_its_stock_name_and_other_tables_still_answer(
    swapped, model_of, batch
) -> None:
    state = model_of(5).state_dict()
    state["ebc.embedding_bags.t_item.weight"] = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        swapped.load_state_dict(state)
    assert "for ebc.embedding_bags.t_item.weight" in str(caught.value)
    assert "(3, 4)" in str(caught.value)
    assert "host.embedding_bags" not in str(caught.value)
    expected = model_of()
    with pytest.raises(RuntimeError, match="size mismatch"):
        expected.load_state_dict(state)
    assert torch.equal(answer(swapped, batch), answer(expected, batch))


def test_a_load_of_the_collection_alone_is_like_one_through_its_parent(
    swapped, model_of, batch
) -> None:
    trained = model_of(5)
    swapped.ebc.load_state_dict(trained.ebc.state_dict())
    assert torch.equal(answer(swapped, batch), answer(trained, batch))
    result = swapped.ebc.load_state_dict({}, strict=False)
    assert result.missing_keys == [f"embedding_bags.{name}.weight" for name in TABLES]


def test_a_load_heals_a_stale_model(swapped, model_of, batch) -> None:
    with torch.no_grad():
        swapped.ebc.weight(0).add_(1)
    swapped.load_state_dict(model_of().state_dict())
    assert torch.equal(answer(swapped, batch), answer(model_of(), batch))


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_swapped_on_meta_is_filled_by_a_load(model_of, swap, batch, name, assign) -> None:
    model, _ = swap(model_of().to("meta"), name)
    assert model.ebc.device.type == "meta"
    assert rebuild_sums_(model) == 0  # nothing to build from yet
    if not assign:
        model.to_empty(device="cpu")
    trained = model_of(5)
    model.load_state_dict(copy.deepcopy(trained.state_dict()), assign=assign)
    assert torch.equal(answer(model, batch), answer(trained, batch))
    assert not model.ebc.stale_tables()


def test_the_distributed_state_dict_has_the_stock_keys(swapped, model_of, batch) -> None:
    assert list(distributed.get_model_state_dict(swapped)) == list(model_of().state_dict())
    trained = model_of(5)
    distributed.set_model_state_dict(swapped, distributed.get_model_state_dict(trained))
    assert torch.equal(answer(swapped, batch), answer(trained, batch))


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_restored_model_keeps_what_was_loaded(model_of, swap, batch, name, assign) -> None:
    model, swapped = swap(model_of(), name)
    trained = model_of(5)
    model.load_state_dict(copy.deepcopy(trained.state_dict()), assign=assign)
    restore_(model, swapped)
    assert type(model.ebc) is EmbeddingBagCollection
    assert torch.equal(answer(model, batch), answer(trained, batch))
