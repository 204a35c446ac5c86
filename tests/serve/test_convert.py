"""A converted model answers as its model does, and the model is only read."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from torchrec.distributed import global_settings
from torchrec.inference.modules import quantize_inference_model

import grace_torchrec as grace
from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.modules.swap import accelerate_
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.row_types import pack_rows
from grace_torchrec.serve.torchscript import script_batch
from grace_torchrec.traces.synthetic import generate

QUANTISED = {"fp16": torch.float16, "int8": torch.int8, "int4": torch.quint4x2}


@pytest.mark.parametrize(
    ("lookup", "code"),
    [
        ("fused", "clusters"),
        ("fused", "subsets"),
        ("ahead", "clusters"),
        ("ahead", "subsets"),
        ("ahead", "sets"),
    ],
)
@pytest.mark.parametrize("row_dtype", ["table", "fp16"])  # our lookup; table batches
@pytest.mark.parametrize("layout", [{}, {"originals": "hbm", "hot_items": ()}], ids=["host", "hbm"])
def test_whole_numbers_come_out_bit_for_bit(
    lookup, code, row_dtype, layout, model_of, plan_for, served_of, batch
):
    model = model_of()
    plan = plan_for(model, lookup=lookup, code=code, **layout)
    served = served_of(model, plan, row_dtype=row_dtype)
    assert served.collections["sparse"].is_direct == (row_dtype == "table")
    assert torch.equal(served(*batch), model(*batch))
    (rewritten,) = grace.rewrite([batch], served)
    assert torch.equal(served(*rewritten), model(*batch))


@pytest.mark.parametrize("row_dtype", ["table", "fp16", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_keys_dims_and_order_are_those_of_the_stock_output(
    row_dtype, dtype, model_of, served_of, batch
):
    model = model_of(dtype=dtype)
    served = served_of(model, row_dtype=row_dtype)
    want = model.sparse(batch[1])
    found = served.collections["sparse"](batch[1])
    assert (found.keys(), found.length_per_key()) == (want.keys(), want.length_per_key())
    for name, column in want.to_dict().items():
        assert found.to_dict()[name].dtype == torch.float32
        torch.testing.assert_close(found.to_dict()[name], column.float(), atol=1.0, rtol=0.1)


class Doubling(nn.Module):
    """Its dense input is doubled where it is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, dense: torch.Tensor, bags: KeyedJaggedTensor) -> torch.Tensor:
        return self.inner(dense.mul_(2), bags)


@pytest.mark.parametrize(
    ("target", "layout"), [("module", {}), ("torchscript", {"lookup": "ahead"})]
)
def test_a_model_that_writes_its_input_leaves_the_example_as_it_was(
    target, layout, model_of, plan_for, batch
):
    model = Doubling(model_of()).eval()
    example = (batch[0].clone(), batch[1])
    served = convert(model, plan_for(model, **layout), example=example, target=target)
    assert torch.equal(example[0], batch[0])
    want = model(batch[0].clone(), batch[1])
    given = script_batch(served.collections, example) if target == "torchscript" else example
    assert torch.equal(served(*given), want)
    assert torch.equal(given[0], batch[0] * 2)  # as the model does


@pytest.mark.parametrize("row_dtype", QUANTISED)
@pytest.mark.parametrize("rewriting", ["in_line", "ahead"])
def test_the_error_is_no_larger_than_that_of_stock_quantisation(row_dtype, rewriting):
    torch.manual_seed(0)
    trace = generate(2_000, 1_500, seed=3)
    table = grace_table(2_000, 64)
    model = nn.Sequential(EmbeddingBagCollection(tables=[table])).eval()
    nn.init.normal_(model[0].embedding_bags["t_item"].weight)
    batches = bags_of_trace(trace)
    memory = grace.MemoryModel.named("a40")
    plan = grace.plan(
        model, grace.profile(batches[:8], model), memory, grace.PlanOptions(rewriting=rewriting)
    )
    assert plan.tables["0.t_item"].sums.num_sums
    served = convert(model, plan, example=(batches[0],), row_dtype=row_dtype)
    stock = quantize_inference_model(copy.deepcopy(model), quantization_dtype=QUANTISED[row_dtype])
    errors = {"ours": [], "stock": []}
    held_out = list(grace.rewrite(batches[8:], served)) if rewriting == "ahead" else batches[8:]
    for plain, ours in zip(batches[8:], held_out, strict=True):
        want = model(plain).to_dict()["item"].detach()
        errors["ours"].append(served(ours).to_dict()["item"] - want)
        errors["stock"].append(stock(plain).to_dict()["item"] - want)
    ours, theirs = (torch.cat(errors[name]) for name in ("ours", "stock"))
    assert ours.abs().max() <= theirs.abs().max()
    assert ours.pow(2).mean() <= theirs.pow(2).mean()


def grace_table(num_rows, dim):
    return EmbeddingBagConfig(
        name="t_item", num_embeddings=num_rows, embedding_dim=dim, feature_names=["item"]
    )


def bags_of_trace(trace, size=128):
    batches = []
    for first in range(0, trace.num_bags - size, size):
        bags = trace.offsets_B1[first : first + size + 1]
        ids = torch.from_numpy(trace.ids_L[bags[0] : bags[-1]]).long()
        lengths = torch.from_numpy(bags).diff()
        batches.append(KeyedJaggedTensor(keys=["item"], values=ids, lengths=lengths))
    return batches


def test_sums_are_formed_from_float_rows_and_packed_then(model_of, plan_for, served_of):
    model = model_of(whole=False)
    collection = served_of(model, row_dtype="int8").collections["sparse"]
    rows = model.sparse.embedding_bags["t_item"].weight.detach()
    _, indptr, items = collection.sets["t_item__hbm_rows"]
    sums = torch.stack([rows[items[a:b].long()].sum(0) for a, b in itertools.pairwise(indptr)])
    (piece,) = collection.pieces()["t_item__hbm_rows"]
    assert torch.equal(piece.rows(), pack_rows(sums, collection.type_of["t_item__hbm_rows"]))


def test_the_model_is_only_read(model_of, plan_for, served_of, batch):
    model = model_of().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = dict(model.named_modules())
    served = served_of(model, row_dtype="int8")
    assert dict(model.named_modules()) == modules
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    answer = served(*batch)
    with torch.no_grad():  # training goes on, and the served model does not notice
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(served(*batch), answer)


def test_a_swapped_model_converts_like_its_stock_one(model_of, plan_for, served_of, batch):
    model = model_of()
    plan = plan_for(model)
    wanted = served_of(model, plan, row_dtype="int8")(*batch)
    swapped = accelerate_(model, plan)
    served = served_of(model, plan, row_dtype="int8")
    assert torch.equal(served(*batch), wanted)
    assert list(swapped.modules) == ["sparse"]
    assert not served.refused


@pytest.mark.parametrize(
    ("row_dtype", "kinds"),
    [
        ("table", {"Linear": 1, "TableBatchCollection": 1}),
        ("int4", {"Linear": 1, "Splitter": 1, "IntNBitTableBatchedEmbeddingBagsCodegen": 2}),
    ],
)
def test_rewriting_and_the_lookup_in_each_memory_are_operators(
    row_dtype, kinds, model_of, served_of
):
    graph = served_of(model_of(), row_dtype=row_dtype).scheduled.schedule.graph
    called = [op.target.partition("(")[0] for op in graph.ops]
    assert {kind: called.count(kind) for kind in kinds} == kinds


def test_a_model_that_cannot_be_traced_still_serves(model_of, plan_for, batch, caplog):
    class Odd(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, dense, bags):
            return self.inner(dense if dense.sum() > 0 else -dense, bags)

    model = Odd(model_of())
    plan = plan_for(model)
    served = convert(model, plan, example=batch)
    assert not served.scheduled.modified
    assert "cannot be traced" in served.scheduled.reason
    assert "streams were asked for" not in caplog.text  # nobody did
    convert(model, plan, example=batch, streams=4)
    assert "convert: 4 streams were asked for, it serves on one: Odd" in caplog.text
    with pytest.raises(NotSupported, match=r"so that torch.fx traces it .* leave the engine's"):
        Engine(served, streams=2)
    assert torch.equal(served(*batch), model(*batch))


def test_a_model_that_is_a_collection_and_one_that_holds_it_twice(model_of, plan_for, batch):
    collection = model_of().sparse
    served = convert(collection, plan_for(collection), example=(batch[1],))
    assert torch.equal(served(batch[1]).values(), collection(batch[1]).values())

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = collection

        def forward(self, bags):
            return self.a(bags).values() + self.b(bags).values()

    model = Twice()
    twice = convert(model, plan_for(model), example=(batch[1],))
    assert torch.equal(twice(batch[1]), 2 * collection(batch[1]).values())
    assert twice.model.a is twice.model.b


def test_what_is_no_collection_stays_and_is_named(model_of, plan_for, batch):
    class Beside(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.rows = EmbeddingCollection(
                tables=[
                    EmbeddingConfig(
                        name="t_x", num_embeddings=20, embedding_dim=4, feature_names=["shop"]
                    )
                ]
            )

        def forward(self, dense, bags):
            return self.inner(dense, bags).sum() + self.rows(bags)["shop"].values().sum()

    model = Beside(model_of()).eval()
    served = convert(model, plan_for(model), example=batch)
    torch.testing.assert_close(served(*batch), model(*batch))
    assert list(served.refused) == ["rows"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"target": "onnx"}, GraceError, "target must be one of"),
        ({"slots": 3}, GraceError, "slots must be 1 or 2"),
        ({"row_dtype": "int2"}, GraceError, "row_dtype must be one of"),
        ({"example": 1}, GraceError, "example must be a tuple"),
        ({"example": (1,)}, GraceError, "refuses the example"),
        ({"streams": 0}, GraceError, "stream"),
        ({"deltas": "no"}, GraceError, "deltas is a str; a bool is expected"),
        ({"strict": "no"}, GraceError, "strict is a str; a bool is expected"),
    ],
)
def test_a_wrong_call_is_one_clear_error(options, error, said, model_of, plan_for, batch):
    model = model_of()
    with pytest.raises(error, match=said):
        convert(model, plan_for(model), **{"example": batch, **options})


def test_a_model_without_tables_and_a_plan_of_another_model_are_refused(model_of, plan_for, batch):
    model = model_of()
    with pytest.raises(NotSupported, match="holds no stock EmbeddingBagCollection"):
        convert(nn.Linear(2, 2), plan_for(model), example=(torch.ones(1, 2),))
    with pytest.raises(PlanMismatch, match="dim 6 in the model"):
        convert(model_of(dim=6), plan_for(model), example=batch)


@pytest.mark.parametrize("row_dtype", ["table", "int4"])
def test_bad_ids_and_empty_batches_are_treated_as_planned(
    row_dtype, model_of, plan_for, model_plan, batch_of
):
    model = model_of()
    bad = batch_of({"item": [[1, 99]], "seen": [[2]], "shop": [[0]]})
    none = batch_of({"item": [], "seen": [], "shop": []})
    for policy in ("raise", "drop", "zero_row"):
        plan = plan_for(model, options=PlanOptions(bad_ids=policy))
        example = (torch.ones(1, 3), batch_of({"item": [[1]], "seen": [[2]], "shop": [[0]]}))
        served = convert(model, plan, example=example, row_dtype=row_dtype)
        collection = served.collections["sparse"]
        assert collection(none).values().shape == (0, 12)
        if policy == "raise":
            with pytest.raises(ValueError, match=r"'t_item', feature 'item': sample 0 holds id 99"):
                collection(bad)
        else:
            instead = [[1]] if policy == "drop" else [[1, 0]]
            good = batch_of({"item": instead, "seen": [[2]], "shop": [[0]]})
            assert torch.equal(collection(bad).values(), collection(good).values())


def test_served_stays_in_eval_mode(model_of, served_of):
    served = served_of(model_of())
    with pytest.raises(NotSupported, match="inference only"):
        served.train()
    assert served.eval() is served
    assert not any(module.training for module in served.modules())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_served_says_that_it_cannot_be_copied(copied, model_of, served_of):
    with pytest.raises(NotSupported, match="cannot be copied or pickled"):
        copied(served_of(model_of()))


def test_a_conversion_without_shards_leaves_the_settings_of_torchrec_alone(
    model_of, plan_for, batch
):
    seen = []

    class Watching(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, dense, bags):
            seen.append(global_settings.get_propogate_device())
            return self.inner(dense, bags)

    model = Watching(model_of()).eval()
    convert(model, plan_for(model), example=batch)
    assert seen
    assert not any(seen)


class TwoCollections(nn.Module):
    """One collection that the plan helps beside one that it leaves stock."""

    def __init__(self, helped, stock):
        super().__init__()
        self.helped, self.stock = helped, stock

    def forward(self, bags):
        return torch.cat([self.helped(bags).values(), self.stock(bags).values()], dim=1)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("row_dtype", ["table", "fp16", "int8", "int4"])
def test_a_collection_left_stock_beside_packed_sums_is_traced(
    row_dtype, is_weighted, table_of, collection_of, model_plan, batch_of
):
    model = TwoCollections(
        collection_of([table_of("t_item")]),
        collection_of([table_of("t_seen", features=("seen",))], is_weighted=is_weighted),
    ).eval()
    plan = model_plan(model, {"t_seen": {"clusters": None, "lookup": "stock"}})
    bags = batch_of({"item": [[3, 1, 2, 5], [], [4, 4, 3, 7]], "seen": [[1, 2], [5, 4], []]})
    bags = KeyedJaggedTensor(
        keys=bags.keys(), values=bags.values(), lengths=bags.lengths(),
        weights=torch.full_like(bags.values(), 0.5, dtype=torch.float32),
    )  # fmt: skip
    served = convert(model, plan, example=(bags,), row_dtype=row_dtype)
    assert served.scheduled.schedule is not None, served.scheduled.reason
    eager = served.slots.contents[0].eager
    assert torch.equal(served(bags), eager(bags))
    if row_dtype in ("table", "fp16"):  # which hold whole numbers exactly
        assert torch.equal(served(bags), model(bags))
