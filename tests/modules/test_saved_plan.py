"""A plan that was saved does in another process what it does where it was made."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import grace_torchrec as grace
from grace_torchrec.traces.profile import TableProfile
from grace_torchrec.traces.synthetic import generate

SCRIPT = Path(__file__).with_name("apply_plan.py")


@pytest.fixture(scope="module")
def applied():
    """The functions of the script."""
    spec = importlib.util.spec_from_file_location("grace_apply_plan", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("hbm_bytes", [20_000, 10**9], ids=["two memories", "all in HBM"])
def test_loaded_in_a_fresh_process_and_applied_it_gives_identical_outputs(
    applied, tmp_path, hbm_bytes
):
    model = applied.model_of()
    tables = {
        "t_item": TableProfile(generate(applied.ROWS, 700, seed=1), ("item",)),
        "t_other": TableProfile(generate(applied.ROWS, 700, seed=2), ("other",)),
    }
    memory = grace.MemoryModel.named("gh200", hbm_bytes=hbm_bytes)
    plan = grace.plan(model, grace.Profile(tables), memory, grace.PlanOptions(size_limits=(3,)))
    assert any(table.num_sums for table in plan.tables.values())
    plan.save(tmp_path / "plan")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    here = applied.outputs(model, plan)
    paths = [str(tmp_path / name) for name in ("plan", "state.pt", "out.pt")]
    subprocess.run([sys.executable, str(SCRIPT), *paths], check=True)
    there = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(here, there)
    assert here.abs().sum() > 0
