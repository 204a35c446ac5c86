"""The drop-in returns what the stock collection returns: any tables, any layout, any batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec import KeyedJaggedTensor

from grace_torchrec import rewrite

FEATURES = ("a", "b", "c", "d")
MOST_BAGS, MOST_IDS = 4, 9
CODED_LOOKUPS = [
    ("fused", "clusters"), ("ahead", "clusters"), ("stock", "clusters"),
    ("fused", "subsets"), ("ahead", "subsets"), ("stock", "subsets"), ("ahead", "sets"),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One drawn collection and batch; ``stride`` bags of each of ``keys``, in that order."""

    tables: list[dict[str, Any]]
    layouts: dict[str, dict[str, Any]]
    is_weighted: bool
    keys: list[str]
    bags: list[list[int]]
    stride: int
    weights: list[float] | None
    id_type: torch.dtype
    bound_type: torch.dtype
    by_offsets: bool
    rewritten: bool
    seed: int = field(repr=False)


@st.composite
def layouts(draw: Callable[..., Any], num_rows: int) -> dict[str, Any]:
    """Draw what is stored beside a table of ``num_rows``, where, and who looks it up."""
    originals = draw(st.sampled_from(["host", "hbm"]))
    hot = st.sets(st.integers(0, num_rows - 1), max_size=4)
    layout = {
        "clusters": None,
        "originals": originals,
        "lookup": draw(st.sampled_from(["fused", "stock"])),
    }
    if draw(st.integers(0, 4)) == 0:
        return layout  # left stock
    sizes = draw(st.lists(st.integers(2, min(8, num_rows)), max_size=3))
    members = draw(st.permutations(range(num_rows)))
    ends = np.cumsum([0, *sizes])
    clusters = [members[a:b] for a, b in pairwise(ends) if b <= num_rows]
    if clusters and layout["lookup"] == "fused" and draw(st.booleans()):
        layout["lookup"] = "ahead"
    codes = ["clusters", "subsets", *(["sets"] if layout["lookup"] == "ahead" else [])]
    return layout | {
        "clusters": clusters,
        "code": draw(st.sampled_from(codes)),
        "num_hbm_sums": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "hot_items": tuple(draw(hot)) if originals == "host" else (),
    }


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    """Draw one to three tables, which may share features, and a batch for them."""
    is_weighted = draw(st.booleans())
    one_type = draw(st.sampled_from(["fp32", "fp16"])) if is_weighted else None
    tables, layout_of, rows_of = [], {}, {}
    for number in range(draw(st.integers(1, 3))):
        num_rows = draw(st.integers(2, 30))
        features = draw(st.lists(st.sampled_from(FEATURES), unique=True, min_size=1, max_size=2))
        table = {
            "name": f"t{number}",
            "features": features,
            "num_rows": num_rows,
            "dim": draw(st.sampled_from([1, 4, 5, 20])),
            "pooling": "sum" if is_weighted else draw(st.sampled_from(["sum", "mean"])),
            "dtype": one_type or draw(st.sampled_from(["fp32", "fp32", "fp16"])),
        }
        tables.append(table)
        layout_of[table["name"]] = draw(layouts(num_rows))
        for feature in features:
            rows_of[feature] = min(num_rows, rows_of.get(feature, num_rows))
    extra = draw(st.lists(st.sampled_from(["x", "y", *FEATURES]), unique=True, max_size=3))
    keys = draw(st.permutations(sorted({*rows_of, *extra})))
    stride = draw(st.integers(1, MOST_BAGS))
    bags = [
        draw(st.lists(st.integers(0, rows_of.get(key, 1000) - 1), max_size=MOST_IDS))
        for key in keys
        for _ in range(stride)
    ]
    num_ids = sum(map(len, bags))
    has_weights = is_weighted or draw(st.integers(0, 5)) == 0
    weight = st.sampled_from([1.0, 2.0, -1.0, 0.5])
    weights = st.lists(weight, min_size=num_ids, max_size=num_ids)
    integer = st.sampled_from([torch.int32, torch.int64])
    return Case(
        tables=tables,
        layouts=layout_of,
        is_weighted=is_weighted,
        keys=keys,
        bags=bags,
        stride=stride,
        weights=draw(weights) if has_weights else None,
        id_type=draw(integer),
        bound_type=draw(integer),
        by_offsets=draw(st.booleans()),
        rewritten=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )


def batch(case: Case) -> KeyedJaggedTensor:
    """Build the batch of a case; half tables take half weights, as the stock collection demands."""
    lengths = torch.tensor([len(bag) for bag in case.bags], dtype=case.bound_type)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(case.bound_type)
    half = case.is_weighted and case.tables[0]["dtype"] == "fp16"
    return KeyedJaggedTensor(
        keys=case.keys,
        values=torch.tensor([i for bag in case.bags for i in bag], dtype=case.id_type),
        weights=None
        if case.weights is None
        else torch.tensor(case.weights, dtype=torch.float16 if half else torch.float32),
        stride=case.stride,
        **({"offsets": offsets} if case.by_offsets else {"lengths": lengths}),
    )


@pytest.fixture(scope="session")
def both(table_of, collection_of, swap_of):
    """Return a function from a case to the results of the stock and of the swapped collection."""

    def run(case: Case, whole: bool):
        tables = [table_of(**table) for table in case.tables]
        stock = collection_of(tables, is_weighted=case.is_weighted, whole=whole, seed=case.seed)
        with torch.no_grad():
            want = stock(batch(case))
            swapped, given = swap_of(stock, case.layouts), batch(case)
            if case.rewritten:
                (given,) = rewrite([given], swapped)
            ours = swapped(given)
        assert ours.keys() == want.keys()
        assert ours.length_per_key() == want.length_per_key()
        assert ours.values().dtype == want.values().dtype
        assert ours.values().shape == want.values().shape
        return stock, want.values(), ours.values()

    return run


def columns_of(case: Case, dtype: str) -> torch.Tensor:
    """Tell the output columns that come from tables of a type."""
    is_it = [t["dtype"] == dtype for t in case.tables for _ in t["features"]]
    widths = [t["dim"] for t in case.tables for _ in t["features"]]
    return torch.tensor(is_it).repeat_interleave(torch.tensor(widths))


def assert_equal_bits(both, case: Case) -> None:
    """Whole rows are added without rounding, so the results must be those of the stock collection.

    Only a mean of half rows differs: the stock collection returns it rounded to half.
    """
    _, want, ours = both(case, whole=True)
    rounded = torch.where(columns_of(case, "fp16"), ours.half().float(), ours)
    assert torch.equal(rounded, want)


def sum_of_sizes(case: Case, stock: torch.nn.Module) -> torch.Tensor:
    """Run the stock collection on absolute rows and weights: what rounding is measured by."""
    with torch.no_grad():
        for bag in stock.embedding_bags.values():
            bag.weight.abs_()
        positive = batch(case)
        if positive.weights_or_none() is not None:
            positive.weights().abs_()
        return stock(positive).values()


@given(cases())
@settings(max_examples=500)
def test_whole_numbers_are_equal_bit_by_bit(both, case: Case) -> None:
    assert_equal_bits(both, case)


@pytest.mark.soak
@given(cases())
@settings(max_examples=10_000)
def test_whole_numbers_are_equal_bit_by_bit_ten_thousand_times(both, case: Case) -> None:
    assert_equal_bits(both, case)


@given(cases())
@settings(max_examples=150)
def test_real_numbers_differ_by_rounding_only(both, case: Case) -> None:
    """1e-5 of the sum of absolute values for fp32 tables, two roundings to half for fp16."""
    stock, want, ours = both(case, whole=False)
    sizes = sum_of_sizes(case, stock)
    tolerance = torch.where(columns_of(case, "fp16"), 4e-3, 1e-5)
    assert ((ours - want).abs() <= tolerance * sizes + 1e-30).all()


def test_a_large_batch_on_all_threads(table_of, collection_of, swap_of) -> None:
    """So large that the fused lookup divides the bags over the threads of PyTorch."""
    random = np.random.default_rng(0)
    num_rows, stride = 5000, 400
    stock = collection_of([table_of(num_rows=num_rows, dim=64)])
    lengths = torch.from_numpy(random.integers(0, 80, stride))
    ids = torch.from_numpy(random.integers(0, num_rows, int(lengths.sum())))
    large = KeyedJaggedTensor(keys=["item"], values=ids, lengths=lengths)
    clusters = np.arange(num_rows).reshape(-1, 4).tolist()
    layout = {"clusters": clusters, "num_hbm_sums": 0.45, "hot_items": range(0, 900, 9)}
    want = stock(large).values()
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            for lookup, code in CODED_LOOKUPS:
                swapped = swap_of(stock, lookup=lookup, code=code, **layout)
                assert torch.equal(swapped(large).values(), want)
                assert torch.equal(swapped(*rewrite([large], swapped)).values(), want)
    finally:
        torch.set_num_threads(threads)
