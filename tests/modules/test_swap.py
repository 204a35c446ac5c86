"""The swap: what goes in, what comes back, and that an error leaves the model as it was."""

import copy
import gc
import pickle
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection

from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch, StaleSums
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.swap import accelerate_, rebuild_sums_, restore_
from grace_torchrec.plans.plan import Plan, PlanOptions

BAGS = [[3, 4, 5, 7, 1, 2], [9, 3, 4], []]
TABLES = {"user": ("t_item", "t_page"), "inner.ads": ("t_ad",)}


class TwoTowers(nn.Module):
    """Two collections at different depths, and one that the plan leaves stock."""

    def __init__(self, user, ads, tail) -> None:
        super().__init__()
        self.user, self.tail = user, tail
        self.inner = nn.Module()
        self.inner.ads = ads

    def forward(self, bags):
        return [m(bags).values() for m in (self.user, self.inner.ads, self.tail)]


@pytest.fixture
def model(table_of, collection_of):
    def tables(*names):
        return [table_of(name, features=(name.removeprefix("t_"),)) for name in names]

    return TwoTowers(
        *(collection_of(tables(*names)) for names in (*TABLES.values(), ("t_tail",)))
    ).eval()


@pytest.fixture
def plan(model, model_plan):
    return model_plan(model, {"t_tail": {"clusters": None}})


@pytest.fixture
def batch(batch_of):
    return batch_of(dict.fromkeys(("item", "page", "ad", "tail"), BAGS))


def answer(model, batch):
    with torch.no_grad():
        return torch.cat(model(batch), dim=1)


def picture(model):
    """Every module and tensor of a model by path: equal pictures are the same objects."""
    held = dict(model.named_modules(remove_duplicate=False))
    return held | dict(model.named_parameters(remove_duplicate=False))


def same_objects(left, right):
    return list(left) == list(right) and all(left[name] is right[name] for name in left)


def test_it_says_what_it_swapped_and_why_the_rest_stays(model, plan, batch) -> None:
    before = answer(model, batch)
    swapped = accelerate_(model, plan)
    assert swapped.modules == TABLES
    assert swapped.refused == {"tail.t_tail": "made by hand for a test"}
    for path in TABLES:
        assert type(model.get_submodule(path)) is GraceEmbeddingBagCollection
        assert not model.get_submodule(path).training
    assert type(model.tail) is EmbeddingBagCollection
    assert torch.equal(answer(model, batch), before)


def test_the_parameters_are_the_same_objects(model, plan) -> None:
    names = {n: p for n, p in model.named_parameters() if "tail" not in n}
    accelerate_(model, plan)
    for path, tables in TABLES.items():
        for table in tables:
            weight = model.get_submodule(path).embedding_bags[table].weight
            assert weight is names[f"{path}.embedding_bags.{table}.weight"]
            assert any(weight is p for p in model.parameters())


def test_a_collection_that_uses_no_sums_stays_as_it_is(model, model_plan) -> None:
    before = picture(model)
    swapped = accelerate_(model, model_plan(model, clusters=None))
    assert swapped.modules == {}
    assert set(swapped.refused) == {f"{p}.{t}" for p, ts in TABLES.items() for t in ts} | {
        "tail.t_tail"
    }
    assert same_objects(picture(model), before)


def test_filter_fn_chooses_collections(model, plan) -> None:
    asked = []

    def choose(module, path):
        asked.append((type(module), path))
        return path == "inner.ads"

    swapped = accelerate_(model, plan, filter_fn=choose)
    assert asked == [(EmbeddingBagCollection, p) for p in ("user", "tail", "inner.ads")]
    assert list(swapped.modules) == ["inner.ads"]
    assert swapped.refused["user"] == "filter_fn left it out"
    assert type(model.user) is EmbeddingBagCollection


def test_tables_chooses_tables_inside_a_collection(model, plan, batch) -> None:
    before = answer(model, batch)
    swapped = accelerate_(model, plan, tables=["t_page"])
    assert swapped.modules == {"user": ("t_page",)}
    assert swapped.refused["user.t_item"] == "not among the tables chosen"
    assert model.user.stored(0, "host").shape[0] == 0
    assert model.user.stored(1, "host").shape[0] > 0
    assert torch.equal(answer(model, batch), before)


def test_no_tables_chosen_swaps_nothing(model, plan) -> None:
    assert accelerate_(model, plan, tables=()).modules == {}


@pytest.mark.parametrize("bad_ids", ["raise", "drop", "zero_row"])
def test_the_plan_says_what_a_bad_id_does(model, model_plan, batch_of, bad_ids) -> None:
    plan = model_plan(model, {"t_tail": {"clusters": None}}, options=PlanOptions(bad_ids=bad_ids))
    accelerate_(model, plan, tables=["t_ad"])
    if bad_ids == "raise":
        with pytest.raises(ValueError, match="99"):
            model.inner.ads(batch_of({"ad": [[1, 99]]}))
    else:
        assert model.inner.ads(batch_of({"ad": [[1, 99]]})).values().shape == (1, 4)


# Errors leave the model as it was


def changed(plan, key, **fields):
    """The plan as if its table ``key`` had been another one."""
    table = plan.tables[key]
    spec = replace(table.spec, **fields)
    other = copy.copy(table)  # a table of another size would need another placement
    object.__setattr__(other, "spec", spec)
    return Plan({**plan.tables, spec.key: other}, plan.memory, plan.options)


MISMATCHES = {
    "rows": ({"num_rows": 21}, "num_rows 20"),
    "dim": ({"dim": 8}, "dim 4"),
    "pooling": ({"pooling": "mean"}, "pooling 'sum'"),
    "features": ({"features": ("other",)}, "features"),
    "dtype": ({"dtype": "fp16"}, "dtype 'fp32'"),
    "weighted": ({"is_weighted": True}, "is_weighted False"),
}


@pytest.mark.parametrize(("fields", "told"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_plan_for_other_tables_changes_nothing(model, plan, batch, fields, told) -> None:
    before, values = picture(model), answer(model, batch)
    with pytest.raises(PlanMismatch, match=f"'inner.ads.t_ad'.*{told}"):
        accelerate_(model, changed(plan, "inner.ads.t_ad", **fields))
    assert same_objects(picture(model), before)
    assert torch.equal(answer(model, batch), values)


def test_a_plan_with_a_table_more_or_less_changes_nothing(model, plan) -> None:
    before = picture(model)
    more = changed(plan, "inner.ads.t_ad", name="t_new")
    less = Plan({k: t for k, t in plan.tables.items() if "t_ad" not in k}, plan.memory)
    for wrong, told in ((more, "t_new.*in the plan"), (less, "t_ad.*in the model")):
        with pytest.raises(PlanMismatch, match=told):
            accelerate_(model, wrong)
    assert same_objects(picture(model), before)


def test_a_later_collection_that_is_refused_changes_no_earlier_one(model, plan) -> None:
    before = picture(model)
    weight = model.inner.ads.embedding_bags["t_ad"].weight
    weight.data = weight.data.t().contiguous().t()
    with pytest.raises(NotSupported, match="'t_ad' is not contiguous"):
        accelerate_(model, plan)
    assert same_objects(picture(model), before)


def test_a_filter_that_fails_changes_nothing(model, plan) -> None:
    before = picture(model)
    with pytest.raises(ZeroDivisionError):
        accelerate_(model, plan, filter_fn=lambda module, path: path == "user" or 1 // 0)
    assert same_objects(picture(model), before)


def test_unknown_table_names_change_nothing(model, plan) -> None:
    before = picture(model)
    with pytest.raises(GraceError, match=r"no table 't_typo'; it has \['t_ad', "):
        accelerate_(model, plan, tables=["t_ad", "t_typo"])
    assert same_objects(picture(model), before)


def test_training_mode_is_refused(model, plan) -> None:
    model.inner.ads.train()
    before = picture(model)
    with pytest.raises(NotSupported, match=r"model\.eval\(\)"):
        accelerate_(model, plan)
    assert same_objects(picture(model), before)


def test_a_collection_at_the_root_is_refused(model, model_plan) -> None:
    with pytest.raises(NotSupported, match=r"nn\.Sequential"):
        accelerate_(model.user, model_plan(model.user))


def test_a_model_without_collections_is_refused(plan) -> None:
    with pytest.raises(NotSupported, match="no stock EmbeddingBagCollection"):
        accelerate_(nn.Linear(2, 2).eval(), plan)


def test_a_second_swap_is_refused_and_changes_nothing(model, plan, batch) -> None:
    accelerate_(model, plan)
    before, values = picture(model), answer(model, batch)
    with pytest.raises(PlanMismatch, match="user: is already swapped; restore_ it first"):
        accelerate_(model, plan)
    del model.tail
    with pytest.raises(NotSupported, match="user: GraceEmbeddingBagCollection already swapped"):
        accelerate_(model, plan)
    assert all(before[name] is module for name, module in picture(model).items() if name)
    assert torch.equal(torch.cat([model.user(batch).values()], 1), values[:, :8])


# Back again


def test_restore_brings_the_stock_modules_back(model, plan, batch) -> None:
    before, values = picture(model), answer(model, batch)
    swapped = accelerate_(model, plan)
    restore_(model, swapped)
    assert same_objects(picture(model), before)
    assert torch.equal(answer(model, batch), values)
    assert accelerate_(model, plan).modules == TABLES  # and it can be swapped again


def test_restore_gives_the_present_rows_and_mode(model, plan, batch) -> None:
    swapped = accelerate_(model, plan)
    state = {k: v + 1 for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    model.train()
    restore_(model, swapped)
    assert model.user.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])
    assert model.user(batch).values().requires_grad
    model.user(batch).values().sum().backward()  # the stock module trains
    assert model.user.embedding_bags["t_item"].weight.grad is not None


def test_restoring_twice_is_refused(model, plan) -> None:
    swapped = accelerate_(model, plan)
    restore_(model, swapped)
    before = picture(model)
    with pytest.raises(PlanMismatch, match="user: holds no swapped module"):
        restore_(model, swapped)
    assert same_objects(picture(model), before)


def test_restore_of_a_model_that_lost_a_module_changes_nothing(model, plan) -> None:
    swapped = accelerate_(model, plan)
    del model.inner.ads
    with pytest.raises(PlanMismatch, match=r"inner\.ads"):
        restore_(model, swapped)
    assert type(model.user) is GraceEmbeddingBagCollection


def test_restore_of_a_copy_is_refused(model, plan, batch) -> None:
    """Two models would share one stock module, and the rows of the one restored last."""
    swapped = accelerate_(model, plan)
    other = copy.deepcopy(model)
    before = picture(other)
    with pytest.raises(PlanMismatch, match="user: was not swapped by this accelerate_ call"):
        restore_(other, swapped)
    assert same_objects(picture(other), before)
    restore_(model, swapped)
    again = accelerate_(model, plan)
    with pytest.raises(PlanMismatch, match="user: was not swapped by this accelerate_ call"):
        restore_(model, swapped)  # an earlier call
    restore_(model, again)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_a_copy_of_model_and_record_is_restored_by_that_record_alone(
    model, plan, batch, copied
) -> None:
    values = answer(model, batch)
    swapped = accelerate_(model, plan)
    other, others = copied((model, swapped))
    for one, record in ((other, swapped), (model, others)):
        with pytest.raises(PlanMismatch, match="was not swapped by this accelerate_ call"):
            restore_(one, record)
    restore_(other, others)
    assert type(model.user) is GraceEmbeddingBagCollection
    restore_(model, swapped)
    for one in (model, other):
        assert type(one.user) is EmbeddingBagCollection
        assert torch.equal(answer(one, batch), values)
    shared = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in shared for parameter in other.parameters())


def test_modules_that_changed_places_are_not_restored(model, plan) -> None:
    swapped = accelerate_(model, plan)
    model.user, model.inner.ads = model.inner.ads, model.user
    with pytest.raises(PlanMismatch, match="was not swapped by this accelerate_ call"):
        restore_(model, swapped)


def test_what_was_swapped_in_is_freed_once_restored(model, plan) -> None:
    """Stored sums are large: the record of a swap keeps none of them."""
    swapped = accelerate_(model, plan)
    stored = weakref.ref(model.user)
    restore_(model, swapped)
    gc.collect()
    assert stored() is None


def test_rebuild_builds_every_swapped_module(model, plan, batch) -> None:
    with pytest.raises(GraceError, match="no swapped module"):
        rebuild_sums_(model)
    stock = copy.deepcopy(model)
    accelerate_(model, plan)
    stored = [model.user.stored(0, "host"), model.user.stored(1, "host")]
    stored.append(model.inner.ads.stored(0, "host"))
    assert rebuild_sums_(model) == sum(map(len, stored)) == 15
    with torch.no_grad():
        for parameter in (*model.parameters(), *stock.parameters()):
            if not any(parameter is rows for rows in stored):
                parameter.add_(1)
    with pytest.raises(StaleSums):
        model(batch)
    rebuild_sums_(model)
    assert torch.equal(answer(model, batch), answer(stock, batch))
