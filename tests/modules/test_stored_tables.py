"""Stored tables: what a module holds is what its plan counts, whatever the code."""

import itertools

import pytest
import torch

from grace_kernels.packed_codes import pack_codes
from grace_torchrec.errors import GraceError

CODES = [
    ("fused", "clusters"), ("fused", "subsets"), ("stock", "subsets"), ("ahead", "sets"),
    ("fused", None),
]  # fmt: skip
LAYOUTS = {
    "host": {},
    "hbm": {"originals": "hbm", "num_hbm_sums": 1.0},
    "split": {"num_hbm_sums": 0.5, "hot_items": (0, 7, 9)},
    "hot-rows-alone": {"clusters": (), "hot_items": (3, 4)},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("lookup", "code"), CODES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_table_holds_every_byte_that_its_plan_predicts(
    table_of, collection_of, swap_of, layout, lookup, code, dtype
) -> None:
    if layout.get("clusters") == () and lookup == "ahead":
        return  # nothing to rewrite
    tables = [table_of(dtype=dtype), table_of("t_page", features=("page",), num_rows=70, dim=3)]
    options = {
        **layout,
        "lookup": lookup,
        **({"clusters": None} if code is None else {"code": code}),
    }
    if code is None:
        options = {"clusters": None, "originals": layout.get("originals", "host")}
    swapped = swap_of(collection_of(tables), **options)
    for plan in swapped.table_plans:
        held = swapped.extra_bytes_of(plan.spec.name)
        assert held == plan.predicted.extra_bytes
        assert (held == 0) == (code is None)


def test_bytes_follow_what_tensors_are_there(table_of, collection_of, swap_of) -> None:
    swapped = swap_of(collection_of([table_of()]), num_hbm_sums=2, hot_items=(7,), code="subsets")
    known = {
        name: tensor
        for name, tensor in swapped.named_buffers()
        if name.startswith(("rewriter.", "t_item__"))
    }
    rows = [swapped.stored(0, tier) for tier in ("hbm", "host")]
    held = sum(tensor.nbytes for tensor in (*known.values(), *rows))
    packed = pack_codes(swapped.rewriter.item_code_0.numpy()).num_bytes  # of the CPU kernels
    assert swapped.extra_bytes_of("t_item") == held + packed


def test_an_unknown_table_is_refused(table_of, collection_of, swap_of) -> None:
    with pytest.raises(GraceError, match="no table 't_other'; it has"):
        swap_of(collection_of([table_of()])).extra_bytes_of("t_other")


@pytest.mark.parametrize("code", ["clusters", "subsets", "sets"])
def test_stored_rows_are_the_sums_of_their_sets(table_of, collection_of, swap_of, code) -> None:
    stock = collection_of([table_of()])
    lookup = "ahead" if code == "sets" else "fused"
    swapped = swap_of(stock, code=code, lookup=lookup, num_hbm_sums=2, hot_items=(7,))
    weight = stock.embedding_bags["t_item"].weight.detach()
    sums = swapped.table_plans[0].sums
    bounds = sums.set_indptr_R1.tolist()
    sets = [sums.set_items_S[a:b] for a, b in itertools.pairwise(bounds)]
    want = torch.stack([weight[torch.from_numpy(items)].sum(0) for items in sets])
    hbm, host = swapped.stored(0, "hbm"), swapped.stored(0, "host")
    assert torch.equal(torch.cat([hbm[:2], host]), want)
    assert torch.equal(hbm[2:], weight[[7]])
    assert swapped.stale_tables() == {}
