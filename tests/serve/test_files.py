"""A saved model comes back as it was served: rows, version, costs; or one error says why not."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from grace_torchrec.artifact import ARRAYS_FILE
from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.serve import document as documents
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.delta import publish_delta
from grace_torchrec.serve.files import load_served
from grace_torchrec.serve.mapped_arrays import write_arrays
from grace_torchrec.serve.sharding import Spread
from grace_torchrec.serve.torchscript import script_batch


@pytest.fixture
def on_meta(model_of):
    """The model's code with no numbers at all."""
    return model_of().to("meta")


@pytest.mark.parametrize("row_dtype", ["table", "fp16", "int8", "int4"])
def test_a_loaded_model_answers_the_same_and_takes_deltas(
    row_dtype, model_of, served_of, batch, on_meta, tmp_path
):
    served = served_of(model_of(whole=False), row_dtype=row_dtype)
    publish_delta(served, {"t_item": ([3, 4], torch.randn(2, 4))})
    served.save(tmp_path / "served")
    loaded = load_served(tmp_path / "served", on_meta, example=batch)
    assert loaded.version == 1
    assert torch.equal(loaded(*batch), served(*batch))
    delta = {"t_item": ([5, 9], torch.randn(2, 4)), "t_seen": ([1], torch.randn(1, 4))}
    assert publish_delta(loaded, delta) == publish_delta(served, delta) == 2
    assert torch.equal(loaded(*batch), served(*batch))
    again = load_served(tmp_path / "served", on_meta, example=batch)
    assert again.version == 1  # what was loaded never writes to the folder


def test_nothing_is_built_or_measured_again(model_of, served_of, batch, on_meta, tmp_path):
    served = served_of(model_of())
    served.save(tmp_path / "served")
    loaded = load_served(tmp_path / "served", on_meta, example=batch)
    assert loaded.scheduled.stats == served.scheduled.stats
    assert loaded.scheduled.schedule == served.scheduled.schedule
    assert loaded.conversion == served.conversion
    assert not any(p.is_meta for p in loaded.model.parameters())


def test_the_models_own_numbers_do_not_count(model_of, served_of, batch, tmp_path):
    served = served_of(model_of(seed=1))
    served.save(tmp_path / "served")
    other = model_of(seed=2)
    before = other.dense.weight.clone()
    loaded = load_served(tmp_path / "served", other, example=batch)
    assert torch.equal(loaded(*batch), served(*batch))
    assert torch.equal(other.dense.weight, before)


def test_saving_again_replaces_the_folder_and_nothing_else(model_of, served_of, tmp_path):
    served = served_of(model_of())
    served.save(tmp_path / "served")
    served.save(tmp_path / "served")
    assert [path.name for path in tmp_path.iterdir()] == ["served"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(GraceError, match="is not a served folder"):
        served.save(tmp_path / "mine")


def test_a_script_is_saved_and_loaded(model_of, served_of, batch, on_meta, tmp_path):
    served = served_of(model_of(), target="torchscript", row_dtype="int8")
    served.save(tmp_path / "served")
    loaded = load_served(tmp_path / "served", on_meta, example=batch)
    given = script_batch(served.collections, batch)
    assert torch.equal(loaded(*given), served(*given))
    assert torch.equal(loaded(*script_batch(loaded.collections, batch)), served(*given))
    script = tmp_path / "served" / "model.ts"
    script.write_bytes(script.read_bytes()[:-7])
    with pytest.raises(GraceError, match=r"model\.ts: was changed"):
        load_served(tmp_path / "served", on_meta, example=batch)


@pytest.mark.parametrize("file", ["served.json", "arrays.safetensors", "plan/plan.json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "flip"])
def test_damage_is_one_error(file, damage, model_of, served_of, batch, on_meta, tmp_path):
    served_of(model_of()).save(tmp_path / "served")
    path = tmp_path / "served" / file
    data = bytearray(path.read_bytes())
    if damage == "flip":
        digits = [k for k in range(len(data) // 2, len(data)) if data[k : k + 1].isdigit()]
        data[digits[0] if digits else -9] ^= 1  # JSON stays JSON
    path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    if damage == "gone":
        path.unlink()
    with pytest.raises(GraceError):
        load_served(tmp_path / "served", on_meta, example=batch)


def test_another_schema_is_refused(model_of, served_of, batch, on_meta, tmp_path):
    served_of(model_of()).save(tmp_path / "served")
    path = tmp_path / "served" / "served.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 9}))
    with pytest.raises(GraceError, match="schema 9, this version reads 1 to 2"):
        load_served(tmp_path / "served", on_meta, example=batch)


def test_another_model_is_refused_by_name(model_of, served_of, batch, tmp_path):
    served_of(model_of()).save(tmp_path / "served")
    other = model_of()
    other.dense = torch.nn.Linear(3, 5)
    with pytest.raises(PlanMismatch, match=r"'dense\.weight' has shape \(4, 3\) in the folder"):
        load_served(tmp_path / "served", other, example=batch)
    with pytest.raises(PlanMismatch, match="dim 8 in the model"):
        load_served(tmp_path / "served", model_of(dim=8), example=batch)


def test_a_model_that_computes_something_else_is_refused(model_of, served_of, batch, tmp_path):
    served_of(model_of()).save(tmp_path / "served")

    class Other(type(model_of())):
        """The same modules and operators, other numbers in its code."""

        def forward(self, dense, bags):
            pooled = self.sparse(bags).to_dict()
            columns = [pooled[name] for name in ("item", "seen", "shop")]
            return torch.cat([self.dense(dense) * self.scale, *columns], dim=-1)

    other = model_of()
    other.__class__ = Other
    with pytest.raises(PlanMismatch, match="was made for another model"):
        load_served(tmp_path / "served", other, example=batch)


def test_a_folder_of_schema_1_is_scheduled_anew(model_of, served_of, batch, on_meta, tmp_path):
    served = served_of(model_of())
    served.save(tmp_path / "served")
    path = tmp_path / "served" / "served.json"
    document = {**json.loads(path.read_text()), "schema": 1}
    del document["schedule"], document[documents.CHECKSUM]
    document[documents.CHECKSUM] = documents._sha256(document)
    path.write_text(json.dumps(document))
    loaded = load_served(tmp_path / "served", on_meta, example=batch)
    assert torch.equal(loaded(*batch), served(*batch))


def test_sharded_tables_are_not_saved(model_of, served_of, tmp_path):
    served = served_of(model_of(), row_dtype="int8", sharding=Spread(world_size=2))
    with pytest.raises(NotSupported, match="sharded tables are not saved"):
        served.save(tmp_path / "served")
    assert not list(tmp_path.iterdir())


def test_rows_that_were_loaded_outlive_their_folder(model_of, served_of, batch, on_meta, tmp_path):
    served = served_of(model_of())
    served.save(tmp_path / "served")
    loaded = load_served(tmp_path / "served", on_meta, example=batch)
    shutil.rmtree(tmp_path / "served")
    assert torch.equal(loaded(*batch), served(*batch))


def put_arrays(folder, change):
    """Change the arrays of a folder, behind checksums that fit."""
    arrays = {name: array.clone() for name, array in load_file(folder / ARRAYS_FILE).items()}
    change(arrays)
    document = json.loads((folder / "served.json").read_text())
    document["arrays_checksum"] = write_arrays(folder / ARRAYS_FILE, arrays)
    del document[documents.CHECKSUM]
    document[documents.CHECKSUM] = documents._sha256(document)
    (folder / "served.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.update(odd=torch.zeros(1)), "holds arrays of nothing"),
        (lambda a: a.pop("masters/sparse.t_item/rows"), "float rows of a table are missing"),
        (lambda a: a.update({"masters/sparse.t_item/rows": torch.zeros(1, 4)}), "float rows of"),
        (lambda a: a["masters/sparse.t_item/items"].neg_(), "float rows of"),
        (lambda a: a["masters/sparse.t_item/items"].add_(15), "float rows of"),
        (lambda a: a.pop("tables/sparse/hbm"), "rows of 'sparse' in hbm are missing"),
        (lambda a: a.update({"tables/sparse/hbm": torch.zeros(8, dtype=torch.uint8)}), "rows of"),
        (lambda a: a.pop("dense/dense.bias"), "shape None in the folder"),
    ],
)
def test_arrays_that_do_not_fit_are_one_error(
    change, said, model_of, served_of, batch, on_meta, tmp_path
):
    served_of(model_of()).save(tmp_path / "served")
    put_arrays(tmp_path / "served", change)
    with pytest.raises(GraceError, match=said):
        load_served(tmp_path / "served", on_meta, example=batch)


class Scaled(torch.nn.Module):
    """Computes with numbers that no state dict has, one of them in nested containers."""

    def __init__(self, tower, factor):
        super().__init__()
        self.tower = tower
        self._factor = torch.tensor(factor)
        self.shifts = {"all": [(torch.full((4,), factor), "kept"), factor]}
        self.register_buffer("quiet", torch.tensor(factor), persistent=False)

    def forward(self, dense, bags):
        pooled = self.tower.sparse(bags).to_dict()["item"]
        return pooled * self._factor * self.quiet + self.shifts["all"][0][0]


@pytest.fixture
def scaled(model_of, plan_for, batch, tmp_path):
    """A converted model of such numbers, saved."""
    model = Scaled(model_of(), 2.0).eval()
    served = convert(model, plan_for(model), example=batch)
    served.save(tmp_path / "served")
    return served


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_in_plain_attributes_are_saved(scaled, device, model_of, batch, tmp_path):
    with torch.device(device):
        other = Scaled(model_of().to(device), 5.0).eval()
    loaded = load_served(tmp_path / "served", other, example=batch)
    assert torch.equal(loaded(*batch), scaled(*batch))
    assert loaded.model.shifts["all"][0][1] == "kept"
    assert float(loaded.model.shifts["all"][1]) == 5.0  # no tensor: the model's code
    assert other._factor.device.type == device  # what is loaded with is only read


def test_folders_that_lack_such_tensors_are_refused(scaled, model_of, batch, tmp_path):
    """Earlier releases left them out: the model's own would change every answer."""
    put_arrays(tmp_path / "served", lambda arrays: arrays.pop("attributes/_factor"))
    with pytest.raises(PlanMismatch, match="'_factor' of the model is not in the folder"):
        load_served(tmp_path / "served", Scaled(model_of(), 5.0).eval(), example=batch)


def test_a_tensor_that_the_model_sets_later_is_given_too(scaled, model_of, batch, tmp_path):
    other = Scaled(model_of(), 5.0).eval()
    other._factor = None
    loaded = load_served(tmp_path / "served", other, example=batch)
    assert torch.equal(loaded(*batch), scaled(*batch))


@pytest.mark.parametrize("own", [True, False])
def test_modules_in_plain_lists_are_not_forgotten(own, model_of, plan_for, batch, tmp_path):
    model = model_of()
    model.aside = [model.dense if own else torch.nn.Linear(3, 4)]
    served = convert(model, plan_for(model), example=batch)
    if own:
        served.save(tmp_path / "served")
        return
    with pytest.raises(NotSupported, match=r"aside\[0\] is a module outside of model.modules\(\)"):
        served.save(tmp_path / "served")


class Twice(torch.nn.Module):
    """One collection at two places."""

    def __init__(self, collection):
        super().__init__()
        self.a = self.b = collection

    def forward(self, bags):
        return self.a(bags).values() + self.b(bags).values()


@pytest.mark.parametrize("row_dtype", ["table", "int8"])
def test_a_collection_at_two_places_is_saved_once_and_loaded(
    row_dtype, model_of, plan_for, batch, tmp_path
):
    model = Twice(model_of().sparse)
    example = (batch[1],)
    served = convert(model, plan_for(model), example=example, row_dtype=row_dtype)
    served.save(tmp_path / "served")
    names = load_file(tmp_path / "served" / ARRAYS_FILE)
    assert {name.partition("/")[0] for name in names} == {"tables", "masters"}
    loaded = load_served(tmp_path / "served", Twice(model_of().sparse), example=example)
    assert loaded.model.a is loaded.model.b
    assert torch.equal(loaded(*example), served(*example))
