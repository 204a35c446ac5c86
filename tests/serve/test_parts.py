"""Table batches check nothing, so rewritten rows are checked before; plain bags read plain rows."""

import logging
from dataclasses import replace

import pytest
import torch

import grace_torchrec as grace
from grace_torchrec.modules.rewritten_batch import RewrittenBatch


def with_rows(batch, change):
    """Return a rewritten batch with other rows of its module."""
    (path,) = batch.modules
    return RewrittenBatch(batch.bags, {path: change(batch.modules[path])})


def first_row(value):
    """Return a change of rewritten rows: the first one becomes ``value``."""
    return lambda given: replace(
        given, rows=torch.cat([given.rows.new_tensor([value]), given.rows[1:]])
    )


@pytest.mark.parametrize("row_dtype", ["table", "int8"])  # our lookup; table batches
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (first_row(-1), "row -1"),
        (first_row(100_000), "row 100000"),
        (lambda given: replace(given, offsets=given.offsets[:-1]), "belong together"),
        (lambda given: replace(given, offsets=given.offsets + 1), "offsets do not rise from 0"),
        (lambda given: replace(given, given_lengths=given.given_lengths[:1]), "belong together"),
    ],
)
def test_rewritten_rows_are_checked(row_dtype, change, said, model_of, served_of, batch):
    served = served_of(model_of(), row_dtype=row_dtype)
    ((dense, rewritten),) = grace.rewrite([batch], served)
    with pytest.raises(ValueError, match=said):
        served(dense, with_rows(rewritten, change))


@pytest.mark.parametrize("code", ["clusters", "subsets", "sets"])
@pytest.mark.parametrize("row_dtype", ["table", "int8"])
def test_plain_bags_of_tables_planned_ahead_are_counted_and_told_once(
    row_dtype, code, model_of, plan_for, served_of, batch, caplog
):
    model = model_of()
    with caplog.at_level(logging.WARNING):
        served = served_of(model, plan_for(model, lookup="ahead", code=code), row_dtype=row_dtype)
        assert not caplog.records  # the runs of a conversion are its own
        collection = served.collections["sparse"]
        assert collection.plain_batches == 0
        (rewritten,) = grace.rewrite([batch], served)
        served(*rewritten)
        assert collection.plain_batches == 0
        for _ in range(3):
            served(*batch)
    assert collection.plain_batches == 3
    (record,) = caplog.records
    assert "plain bags came for tables planned 'ahead'" in record.getMessage()


def test_plain_bags_of_tables_planned_ahead_read_plain_rows(
    model_of, plan_for, served_of, batch_of
):
    model = model_of()
    bags = batch_of({"item": [[3, 4, 5]], "seen": [[3, 4, 5]], "shop": [[0]]})
    for lookup, reads_sums in (("fused", True), ("ahead", False)):
        served = served_of(model, plan_for(model, lookup=lookup), row_dtype="int8")
        parts, lengths, _ = served.collections["sparse"].splitter(bags)
        of_plain = parts.to_dict()[parts.keys()[0]].lengths().tolist()
        assert (of_plain != [3]) == reads_sums
        assert lengths.flatten().tolist() == [3, 3, 1]


def test_a_batch_that_is_not_planned_ahead_is_not_counted(model_of, served_of, batch):
    served = served_of(model_of(), row_dtype="int8")
    served(*batch)
    assert served.collections["sparse"].plain_batches == 0
