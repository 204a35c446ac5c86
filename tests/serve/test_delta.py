"""A delta leaves what a conversion of the new rows would make; readers see all of it or nothing."""

import copy
import itertools
import threading

import numpy as np
import pytest
import torch

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.delta import publish_delta

ROW_DTYPES = ("table", "fp16", "int8", "int4")


def same_rows(a, b):
    """Tell whether all rows of two served models are equal, bit for bit."""
    return all(
        torch.equal(piece.rows(), other.rows())
        for path, collection in a.collections.items()
        for table, pieces in collection.pieces().items()
        for piece, other in zip(pieces, b.collections[path].pieces()[table], strict=True)
    )


def changed(model, delta):
    """Return a copy of a model with new rows."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, (ids, rows) in delta.items():
            weight = model.sparse.embedding_bags[name.rpartition(".")[2]].weight
            weight[torch.as_tensor(ids)] = torch.as_tensor(rows, dtype=weight.dtype)
    return model


def random_delta(generator, dim=4):
    """Return new rows of one or two tables."""
    delta = {}
    for name in ("t_item", "sparse.t_seen", "t_shop"):
        number = int(torch.randint(0, 5, (1,), generator=generator))
        ids = torch.randperm(20, generator=generator)[:number]
        delta[name] = (ids, torch.randn(number, dim, generator=generator))
    return delta


@pytest.mark.parametrize(
    ("row_dtype", "slots", "code"),
    [
        *((row_dtype, slots, "clusters") for row_dtype in ROW_DTYPES for slots in (1, 2)),
        ("int8", 2, "subsets"),
        ("int8", 2, "sets"),
    ],
)
def test_a_delta_equals_a_full_rebuild_bit_for_bit(
    row_dtype, slots, code, model_of, plan_for, served_of, batch
):
    model = model_of(whole=False)
    plan = plan_for(model, code=code, lookup="ahead" if code == "sets" else "fused")
    served = served_of(model, plan, row_dtype=row_dtype, slots=slots)
    generator = torch.Generator().manual_seed(3)
    for turn in range(25):
        delta = random_delta(generator)
        assert publish_delta(served, delta) == turn + 1
        model = changed(model, delta)
    rebuilt = served_of(model, plan, row_dtype=row_dtype)
    assert same_rows(served, rebuilt)
    assert torch.equal(served(*batch), rebuilt(*batch))
    assert len(served.slots.contents) == slots
    for slot in served.slots.contents:
        assert torch.equal(slot.module(*batch), rebuilt(*batch))


@pytest.mark.soak
@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_a_thousand_deltas_equal_a_full_rebuild_each(row_dtype, model_of, served_of):
    model = model_of(whole=False)
    served = served_of(model, row_dtype=row_dtype)
    generator = torch.Generator().manual_seed(4)
    for turn in range(1000):
        delta = random_delta(generator)
        publish_delta(served, delta)
        model = changed(model, delta)
        if turn % 20 == 19:
            assert same_rows(served, served_of(model, row_dtype=row_dtype)), turn


def test_every_sum_and_copy_that_holds_a_row_follows(model_of, served_of):
    served = served_of(model_of())
    rows = torch.full((2, 4), 100.0)
    publish_delta(served, {"t_item": ([3, 7], rows)})  # 3 is in sums of {3, 4, 5}, 7 is a hot row
    collection = served.collections["sparse"]
    before = served_of(model_of()).collections["sparse"]
    for name, (table, indptr, items) in collection.sets.items():
        holds = torch.tensor(
            [
                bool(set(items[a:b].tolist()) & {3, 7}) and table == 0
                for a, b in itertools.pairwise(indptr)
            ]
        )
        (piece,), (old,) = collection.pieces()[name], before.pieces()[name]
        assert torch.equal((piece.rows() != old.rows()).any(dim=1), holds), name


@pytest.mark.parametrize("slots", [1, 2])
def test_no_response_mixes_versions_under_four_readers(slots, model_of, plan_for, batch):
    model = model_of()
    with torch.no_grad():  # every row of every table says its version
        for bag in model.sparse.embedding_bags.values():
            bag.weight.zero_()
    served = convert(model, plan_for(model), example=batch, slots=slots)
    bags = batch[1]
    lengths = bags.lengths().view(3, 4).float()
    lengths[1] = (lengths[1] > 0).float()  # MEAN
    want = torch.repeat_interleave(lengths.T, 4, dim=1)
    everything = torch.arange(20)
    mixed, seen, done = [], set(), threading.Event()

    def read():
        while not done.is_set():
            answer = served.answer(*batch)
            if not torch.equal(answer.output[:, 4:], want * answer.version):
                mixed.append(answer)
            seen.add(answer.version)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for version in range(1, 60):
        rows = torch.full((20, 4), float(version))
        names = ("t_item", "t_seen", "t_shop")
        assert publish_delta(served, dict.fromkeys(names, (everything, rows))) == version
    done.set()
    for reader in readers:
        reader.join(30)
    assert not mixed
    assert len(seen) > 1


BAD = [
    ({"t_none": ([1], np.ones((1, 4)))}, "no table 't_none'"),
    ({"t_item": ([20], np.ones((1, 4)))}, r"t_item' has no row 20; it has 20 rows"),
    ({"t_item": ([-1], np.ones((1, 4)))}, r"t_item' has no row -1"),
    ({"t_item": ([1, 2, 1], np.ones((3, 4)))}, r"t_item' is given row 1 twice"),
    ({"t_item": ([1.0], np.ones((1, 4)))}, "whole numbers"),
    ({"t_item": ([True], np.ones((1, 4)))}, "whole numbers"),
    ({"t_item": ([[1]], np.ones((1, 4)))}, "a vector"),
    ({"t_item": (["one"], np.ones((1, 4)))}, "whole numbers"),
    ({"t_item": ([1], np.ones((2, 4)))}, r"shape \(2, 4\) for 1 ids of dimension 4"),
    ({"t_item": ([1], np.ones((1, 5)))}, r"shape \(1, 5\)"),
    ({"t_item": ([1], np.ones(4))}, r"float rows \[K, D\]"),
    ({"t_item": ([1], np.ones((1, 4), np.int64))}, r"float rows \[K, D\]"),
    ({"t_item": 7}, r"needs \(ids, rows\)"),
    ({"t_item": ([1], [[1.0, float("nan"), 1.0, 1.0]])}, "row 1 is not finite"),
    ({"t_item": ([1], [[1.0, float("inf"), 1.0, 1.0]])}, "row 1 is not finite"),
    ({"t_item": ([1], np.ones((1, 4))), "sparse.t_item": ([2], np.ones((1, 4)))}, "given twice"),
    ({"t_shop": ([1], np.ones((1, 4))), "t_item": ([99], np.ones((1, 4)))}, "no row 99"),
]


@pytest.mark.parametrize(("delta", "said"), BAD)
def test_a_bad_delta_is_one_error_and_changes_nothing(delta, said, model_of, served_of):
    model = model_of()
    served = served_of(model)
    with pytest.raises(GraceError, match=said):
        publish_delta(served, delta)
    assert served.version == 0
    assert same_rows(served, served_of(model))


@pytest.mark.parametrize("row_dtype", ["fp16", "int8", "int4"])
def test_numbers_beyond_half_are_refused_for_rows_that_hold_halves(row_dtype, model_of, served_of):
    delta = {"t_item": ([1], torch.full((1, 4), 1e6))}
    with pytest.raises(GraceError, match="beyond 65504"):
        publish_delta(served_of(model_of(), row_dtype=row_dtype), delta)
    assert publish_delta(served_of(model_of()), delta) == 1


def test_sums_beyond_half_are_refused_before_anything_is_kept(model_of, served_of):
    model = model_of()
    served = served_of(model, row_dtype="int8")  # its sums are fp16
    delta = {"t_item": ([3, 4, 5], torch.full((3, 4), 4e4))}
    with pytest.raises(GraceError, match=r"stored sum of table 'sparse\.t_item'.*beyond 65504"):
        publish_delta(served, delta)
    assert served.version == 0
    assert same_rows(served, served_of(model, row_dtype="int8"))
    good = {"t_item": ([3], torch.ones(1, 4))}  # formed from the rows of before
    publish_delta(served, good)
    assert same_rows(served, served_of(changed(model, good), row_dtype="int8"))
    assert publish_delta(served, delta, non_finite="write") == 2


def test_a_failed_delta_is_in_no_later_sum(model_of, served_of):
    model = model_of()
    served = served_of(model)
    copy_of = served.slots._copy

    def no_room(content):
        raise MemoryError("no room for a second copy")

    served.slots._copy = no_room
    with pytest.raises(MemoryError):
        publish_delta(served, {"t_item": ([3, 4, 5], torch.full((3, 4), 50.0))})
    assert (served.version, len(served.slots.contents)) == (0, 1)
    served.slots._copy = copy_of
    good = {"t_item": ([3], torch.ones(1, 4))}  # in sums with 4 and 5
    assert publish_delta(served, good) == 1
    assert same_rows(served, served_of(changed(model, good)))


def test_numbers_that_are_not_finite_are_written_if_asked(model_of, served_of, batch):
    served = served_of(model_of())
    rows = torch.full((1, 4), float("nan"))
    publish_delta(served, {"t_item": ([1], rows)}, non_finite="write")
    assert served(*batch)[:, 4:8].isnan().any(dim=1).tolist() == [True, False, False, True]
    with pytest.raises(GraceError, match="'raise' or 'write'"):
        publish_delta(served, {}, non_finite="ignore")


def test_an_empty_delta_is_no_version(model_of, served_of):
    served = served_of(model_of())
    assert (
        publish_delta(served, {}) == publish_delta(served, {"t_item": ([], np.ones((0, 4)))}) == 0
    )


def test_rows_are_held_twice_only_after_the_first_delta(model_of, served_of):
    served = served_of(model_of())
    assert len(served.slots.contents) == 1
    publish_delta(served, {"t_item": ([1], torch.ones(1, 4))})
    first, second = served.slots.contents
    (a,), (b,) = (s.collections["sparse"].pieces()["t_item"] for s in (first, second))
    assert a.rows().data_ptr() != b.rows().data_ptr()
    assert first.eager.dense.weight is second.eager.dense.weight


def test_models_without_masters_take_no_delta(model_of, served_of):
    for options in ({"deltas": False}, {"target": "torchscript"}):
        served = served_of(model_of(), **options)
        with pytest.raises(NotSupported, match="takes no deltas"):
            publish_delta(served, {"t_item": ([1], torch.ones(1, 4))})


def test_sharded_tables_take_deltas_too(model_of, served_of, plan_for, batch):
    from grace_torchrec.serve.sharding import Spread

    model = model_of(whole=False)
    sharding = Spread(world_size=2, row_wise=("t_item",))
    served = served_of(model, row_dtype="int8", sharding=sharding)
    delta = random_delta(torch.Generator().manual_seed(8))
    for _ in range(2):
        publish_delta(served, delta)
    rebuilt = served_of(changed(model, delta), row_dtype="int8", sharding=sharding)
    assert same_rows(served, rebuilt)
    for slot in served.slots.contents:
        assert torch.equal(slot.module(*batch), rebuilt(*batch))


def test_a_model_that_was_not_converted_is_refused():
    with pytest.raises(GraceError, match="got a Linear; give what convert returned"):
        publish_delta(torch.nn.Linear(1, 1), {})
