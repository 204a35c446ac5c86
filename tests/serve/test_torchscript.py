"""A TorchScript artefact gives equal outputs where this package was never imported."""

import subprocess
import sys

import pytest
import torch

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.torchscript import script_batch

STRANGER = """
import sys
from pathlib import Path

import fbgemm_gpu, torch
from torchrec import KeyedJaggedTensor

for folder in map(Path, sys.argv[1:]):
    script = torch.jit.load(folder / "script.ts")
    for file in sorted(folder.glob("batch.*")):
        held = torch.load(file, weights_only=True)
        bags = KeyedJaggedTensor(
            keys=held["keys"], values=held["values"], lengths=held["lengths"], weights=held["weights"]
        )
        assert torch.equal(script(held["dense"], bags), held["wanted"]), file
    print("equal", len(list(folder.glob("batch.*"))))
ours = {"grace_torchrec", "grace_kernels", "grace_sharding"}
assert not ours & {name.partition(".")[0] for name in sys.modules}
"""
ROW_DTYPES = ("table", "fp16", "int8", "int4")


def hold(path, given, wanted):
    """Write a batch as plain tensors."""
    dense, bags = given
    torch.save(
        {
            "dense": dense,
            "keys": bags.keys(),
            "values": bags.values(),
            "lengths": bags.lengths(),
            "weights": bags.weights_or_none(),
            "wanted": wanted,
        },
        path,
    )


def test_a_process_that_never_imported_the_package_computes_the_same(
    model_of, served_of, batch, batch_of, tmp_path
):
    model = model_of(whole=False)
    other = batch_of({"more": [[3]], "shop": [[1]], "item": [[5, 4, 1, 2, 2]], "seen": [[]]})
    for row_dtype in ROW_DTYPES:
        served = served_of(model, row_dtype=row_dtype, target="torchscript")
        module = served_of(model, row_dtype=row_dtype)
        folder = tmp_path / row_dtype
        folder.mkdir()
        torch.jit.save(served.slots.contents[0].module, str(folder / "script.ts"))
        for number, one in enumerate([batch, (torch.ones(1, 3), other)]):
            given = script_batch(served.collections, one)
            torch.testing.assert_close(served(*given), module(*one))
            hold(folder / f"batch.{number}", given, served(*given))
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *(tmp_path / row_dtype for row_dtype in ROW_DTYPES)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split("\n")[:-1] == ["equal 2"] * len(ROW_DTYPES), done.stderr
    assert done.returncode == 0, done.stderr


def test_only_stock_operators_are_inside(model_of, served_of):
    script = served_of(model_of(), target="torchscript").slots.contents[0].module
    assert "grace::" not in str(script.inlined_graph)  # the folder may have the product's name


def test_weighted_bags_keep_their_weights(collection_of, table_of, model_plan, batch_of):
    model = torch.nn.Sequential(collection_of([table_of()], is_weighted=True)).eval()
    bags = batch_of({"item": [[1, 2, 3], [4]]}, {"item": [[0.5, 0.5, 2.0], [3.0]]})
    plan = model_plan(model)
    served = convert(model, plan, example=(bags,), target="torchscript")
    found = served(*script_batch(served.collections, (bags,)))
    assert torch.equal(found.values(), model(bags).values())


def test_a_batch_that_was_not_rewritten_ahead_is_refused_by_what_makes_one(
    model_of, served_of, batch
):
    served = served_of(model_of(), target="torchscript")
    for call in (served, served.answer):
        with pytest.raises(
            GraceError, match=r"served\(\*script_batch\(served.collections, batch\)"
        ):
            call(*batch)
    assert served(*script_batch(served.collections, batch)).shape[0] == 4


def test_converting_to_torchscript_warns_of_nothing(model_of, served_of, recwarn):
    served_of(model_of(), target="torchscript")
    assert [str(warning.message) for warning in recwarn] == []


def test_what_script_batch_cannot_take_is_said(model_of, served_of, batch, batch_of):
    collections = served_of(model_of(), target="torchscript").collections
    with pytest.raises(GraceError, match="holds 0 KeyedJaggedTensors"):
        script_batch(collections, (batch[0],))
    with pytest.raises(GraceError, match="no bags"):
        script_batch(
            collections, (torch.ones(0, 3), batch_of({"item": [], "seen": [], "shop": []}))
        )


def test_a_model_that_cannot_be_scripted_is_refused(model_of, plan_for, batch):
    class Odd(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, dense, bags):
            return self.inner(dense if dense.sum() > 0 else -dense, bags)

    model = Odd(model_of())
    with pytest.raises(NotSupported, match="Odd cannot be scripted"):
        convert(model, plan_for(model), example=batch, target="torchscript")
