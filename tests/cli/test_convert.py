"""``grace-torchrec convert``: a model by its function, a plan by its folder, a folder that serves."""

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.cli.convert import convert
from grace_torchrec.serve.torchscript import script_batch
from grace_torchrec.traces.synthetic import generate


@pytest.fixture(scope="module")
def model_and_batches():
    trace = generate(2_000, 1_000, seed=3)
    torch.manual_seed(0)
    table = EmbeddingBagConfig(
        name="t_item", num_embeddings=2_000, embedding_dim=64, feature_names=["item"]
    )
    bags = KeyedJaggedTensor(
        keys=["item"],
        values=torch.from_numpy(trace.ids_L).long(),
        lengths=torch.from_numpy(trace.offsets_B1).diff(),
    )
    return nn.Sequential(EmbeddingBagCollection(tables=[table])).eval(), bags


@pytest.mark.parametrize("target", ["module", "torchscript"])
def test_a_model_is_converted_and_its_folder_serves(
    target, model_and_batches, tmp_path, monkeypatch
):
    model, bags = model_and_batches
    plan = grace.plan(model, grace.profile([bags], model), grace.MemoryModel.named("a40"))
    plan.save(tmp_path / "plan")
    (tmp_path / "models_of_a_test.py").write_text("def served():\n    return MADE\n")
    monkeypatch.syspath_prepend(tmp_path)
    import models_of_a_test

    models_of_a_test.MADE = (model, [(bags,)])
    arguments = ["models_of_a_test:served", tmp_path / "plan", "-o", tmp_path / "served"]
    arguments += ["--row-dtype", "int8", "--target", target, "--json"]
    result = CliRunner().invoke(convert, [str(a) for a in arguments], standalone_mode=False)
    assert result.exception is None, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["row_types"] == {"0.t_item": "int8"}
    assert found["takes_deltas"] == (target == "module")
    served = grace.load_served(tmp_path / "served", model, example=(bags,))
    given = (bags,) if target == "module" else script_batch(served.collections, (bags,))
    found, wanted = served(*given).values(), model(bags).values()
    torch.testing.assert_close(found, wanted, atol=0.01, rtol=0.01)
