"""An exported program computes what the model does; what cannot be exported says why."""

import pytest
import torch
from torchrec import KeyedJaggedTensor

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.serve.exported import exported


def test_an_exported_program_computes_the_same_and_is_independent(model_of, plan_for, batch):
    model = model_of()
    program = exported(model, plan_for(model), example=batch).module()
    wanted = model(*batch)
    assert torch.equal(program(*batch), wanted)
    assert type(model.sparse).__name__ == "EmbeddingBagCollection"
    with torch.no_grad():
        for bag in model.sparse.embedding_bags.values():
            bag.weight.add_(1.0)
    assert torch.equal(program(*batch), wanted)


def test_quantised_rows_are_refused_with_the_reason(model_of, plan_for, batch):
    model = model_of()
    plan = plan_for(model, options=PlanOptions(row_dtype="int8"))
    with pytest.raises(NotSupported, match=r"sparse\.t_item is planned as int8: .* be exported"):
        exported(model, plan, example=batch)


def test_an_exported_program_checks_its_batches(model_of, plan_for, batch):
    model = model_of()
    program = exported(model, plan_for(model), example=batch).module()
    dense, bags = batch
    lengths = bags.lengths().clone()
    lengths[0] += 1  # of the same shape, and more ids than there are
    wrong = KeyedJaggedTensor(keys=bags.keys(), values=bags.values(), lengths=lengths)
    with pytest.raises(GraceError, match=r"lengths add up to 24, there are 23 ids"):
        program(dense, wrong)
