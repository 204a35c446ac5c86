"""Rows are packed as TorchRec's own quantiser packs them, a few at a time or all at once."""

import pytest
import torch
from torchrec.inference.modules import quantize_inference_model

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.row_types import beyond, pack_rows, packed_bytes, row_types, sum_type

TYPES = {"fp16": torch.float16, "int8": torch.int8, "int4": torch.quint4x2}


@pytest.mark.parametrize("row_type", TYPES)
def test_rows_are_those_of_the_stock_quantiser(row_type, collection_of, table_of):
    stock = collection_of([table_of(dim=12)], whole=False)
    rows = stock.embedding_bags["t_item"].weight.detach().clone()
    quantised = quantize_inference_model(
        torch.nn.Sequential(stock), quantization_dtype=TYPES[row_type]
    )
    (batch,) = quantised[0].tbes
    wanted = batch.split_embedding_weights(split_scale_shifts=False)[0][0]
    packed = pack_rows(rows, row_type)
    assert packed.shape[1] == packed_bytes(row_type, 12)
    assert torch.equal(packed, wanted[:, : packed.shape[1]])


@pytest.mark.parametrize("row_type", ["fp32", *TYPES])
def test_packing_goes_row_by_row(row_type):
    rows = torch.randn(9, 8, generator=torch.Generator().manual_seed(0))
    apart = torch.cat([pack_rows(rows[:2], row_type), pack_rows(rows[2:], row_type)])
    assert torch.equal(pack_rows(rows, row_type), apart)
    assert pack_rows(rows[:0], row_type).shape == (0, packed_bytes(row_type, 8))


def test_types_come_from_the_caller_or_the_plan(model_of, plan_for):
    plan = plan_for(model_of())
    assert set(row_types(plan, None).values()) == {"fp32"}
    assert set(row_types(plan, "int8").values()) == {"int8"}
    with pytest.raises(GraceError, match="row_dtype must be one of"):
        row_types(plan, "int2")


@pytest.mark.parametrize(("row_type", "dim", "multiple"), [("int8", 5, 2), ("int4", 6, 4)])
def test_rows_that_fbgemm_cannot_quantise_are_refused_by_name(
    row_type, dim, multiple, model_of, plan_for
):
    with pytest.raises(
        NotSupported, match=rf"table sparse\.t_item: {row_type} .* of {multiple}, .* {dim};"
    ):
        row_types(plan_for(model_of(dim=dim)), row_type)


def test_sums_of_packed_rows_are_held_in_a_wider_type():
    assert [sum_type(kind, "fp32") for kind in ("fp32", "fp16", "int8", "int4")] == [
        "fp32", "fp32", "fp16", "int8"
    ]  # fmt: skip
    assert sum_type("fp16", "fp16") == "fp16"  # rows keep their type, and so do their sums
    wide = {kind: packed_bytes(sum_type(kind, "fp32"), 64) for kind in ("fp16", "int8", "int4")}
    assert max(wide.values()) <= packed_bytes("fp32", 64)  # no more than was planned


@pytest.mark.parametrize("row_type", ["fp16", "int8", "int4"])
def test_every_row_that_is_not_beyond_a_type_stays_finite(row_type):
    largest = torch.finfo(torch.float16).max
    rows = torch.tensor([[largest, -largest, 0.0, 1.0], [1e5, 0, 0, 0], [0, 0, -7e4, 0]])
    assert beyond(rows, row_type).tolist() == [False, True, True]
    halves = pack_rows(rows[:1], row_type)[:, :4].contiguous().view(torch.float16)
    assert bool(halves.isfinite().all())  # fp16: values; else the scale and the bias
    assert not beyond(rows, "fp32").any()


@pytest.mark.parametrize("row_dtype", ["fp16", "int8", "int4"])
def test_a_model_with_numbers_beyond_its_rows_is_refused_by_row(row_dtype, model_of, served_of):
    model = model_of()
    with torch.no_grad():
        model.sparse.embedding_bags["t_shop"].weight[13, 2] = 1e5
    with pytest.raises(NotSupported, match=r"'sparse\.t_shop': row 13 is beyond 65504"):
        served_of(model, row_dtype=row_dtype)


def test_a_model_with_sums_beyond_their_rows_is_refused(model_of, served_of):
    model = model_of()
    with torch.no_grad():
        model.sparse.embedding_bags["t_item"].weight[:] = 4e4
    with pytest.raises(NotSupported, match=r"'sparse\.t_item__\w+': row \d+ is beyond 65504"):
        served_of(model, row_dtype="int8")
