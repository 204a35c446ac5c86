"""Served files: a converted model as a folder, and its way back.

Flow: Served -> ``served.json`` + ``arrays.safetensors`` + the plan's own folder (``plan/``) ->
*load_served* with the model's code -> Served.  The folder holds every number (tables, stored sums,
dense weights, float rows for deltas, costs of operators), so nothing is built or measured again; the
model gives its structure, and may be made on the meta device.  Nothing is ever unpickled.
A TorchScript target is saved as PyTorch's own archive beside them.
"""

import hashlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.plans.files import check_plan_fits
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.serve.convert import assemble, refused_modules_of, with_table_batches
from grace_torchrec.serve.copies import skeleton_of
from grace_torchrec.serve.mapped_arrays import read_arrays, write_arrays
from grace_torchrec.serve.masters import MasterRows, Masters
from grace_torchrec.serve.served import Conversion, Served, ServedModel
from grace_torchrec.serve.slots import Slots
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.serve.table_pieces import batches_of, give_memory
from grace_torchrec.strict_files import read_json

SCHEMA = 1
NAME, SCRIPT_FILE = "served", "model.ts"
DENSE, TABLES, MASTERS = "dense/", "tables/", "masters/"


def save_served(served: Served, path: str | os.PathLike[str]) -> None:
    """Write the folder whole or not at all, as of the version that readers see now.

    Raises:
        GraceError: ``path`` is something else than such a folder, or cannot be written.
        NotSupported: the tables are sharded.
    """
    with served.one_delta, served.slots.reading() as (model, version):
        arrays = _arrays(served, model)
        document = {
            "schema": SCHEMA,
            "version": version,
            "conversion": asdict(served.conversion),
            "stats": _stats_to_json(served),
        }
        with artifact.new_folder(path, NAME) as folder:
            served.plan.save(folder / "plan")
            if served.conversion.target == "torchscript":
                torch.jit.save(model.module, str(folder / SCRIPT_FILE))
                document["script_sha256"] = _sha256(folder / SCRIPT_FILE)
            document["arrays_checksum"] = write_arrays(folder / artifact.ARRAYS_FILE, arrays)
            document["document_sha256"] = _document_sha256(document)
            artifact.write_document(folder / f"{NAME}.json", document)


def load_served(
    path: str | os.PathLike[str], model: nn.Module, *, example: tuple[Any, ...]
) -> Served:
    """Read a converted model; its numbers come from the folder, its code from ``model``.

    Args:
        path: What ``Served.save`` wrote.
        model: The stock model with any weights; on the meta device it costs no memory.
        example: One batch: the model's positional arguments.

    Raises:
        GraceError: the folder is missing, damaged, or of a schema this version does not know.
        PlanMismatch: the model has other tables or other dense weights than the saved one.
    """
    begin = time.perf_counter()
    folder = Path(path)
    document = _read_document(folder)
    plan = Plan.load(folder / "plan")
    conversion = _conversion(document, plan, folder)
    skeleton, originals = skeleton_of(model)
    check_plan_fits(plan, table_specs(skeleton))
    arrays = read_arrays(folder / artifact.ARRAYS_FILE, document.get("arrays_checksum"), NAME)
    eager, collections = with_table_batches(skeleton, originals, plan, conversion, "meta")
    refused = refused_modules_of(model)
    if conversion.target == "torchscript":
        script = ServedModel(_load_script(folder, document), eager, collections)
        return Served(Slots(script), plan, conversion, None, None, refused)
    _give_rows(collections, arrays, folder)
    _give_dense(eager, arrays, folder)
    served = assemble(
        eager, collections, plan, conversion, example, _give_masters(arrays), refused,
        _stats_from_json(document.get("stats"), folder), int(document["version"]),
    )  # fmt: skip
    served.build_s = time.perf_counter() - begin
    return served


def dense_state(model: nn.Module) -> dict[str, Tensor]:
    """Return every tensor outside the served collections, by its name in the state dict.

    Buffers that are kept out of state dicts count too: a model made on the meta device lacks them.
    """
    inside = tuple(
        f"{path}." if path else ""
        for path, module in model.named_modules()
        if isinstance(module, TableBatchCollection)
    )
    found = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return {name: tensor for name, tensor in found.items() if not name.startswith(inside)}


def _arrays(served: Served, model: ServedModel) -> dict[str, Tensor]:
    """Return all numbers of a served model by name."""
    arrays: dict[str, Tensor] = {}
    if served.conversion.target == "torchscript":
        return arrays  # the archive holds them
    for path, collection in model.collections.items():
        if not collection.is_whole:
            raise NotSupported("save: sharded tables are not saved; convert the model again")
        for tier, batch in _batches(collection):
            arrays[f"{TABLES}{path}/{tier}"] = batch.weights_host
    arrays |= {f"{DENSE}{name}": tensor for name, tensor in dense_state(model.eager).items()}
    for key, rows in served.masters.tables.items() if served.masters is not None else ():
        arrays[f"{MASTERS}{key}/items"] = rows.items_G
        arrays[f"{MASTERS}{key}/rows"] = rows.rows_GD
    return arrays


def _batches(collection: TableBatchCollection) -> list[tuple[str, Any]]:
    """Return (name, table batch) of a collection in a fixed order: one for each memory."""
    inner = collection.inner_collections()
    return [(name, batch) for name, module in inner.items() for batch in batches_of(module)]


def _give_rows(
    collections: dict[str, TableBatchCollection], arrays: dict[str, Tensor], folder: Path
) -> None:
    """Let table batches read their rows where the file is mapped."""
    for path, collection in collections.items():
        for tier, batch in _batches(collection):
            rows = arrays.pop(f"{TABLES}{path}/{tier}", None)
            if rows is None or not give_memory(batch, rows):
                raise GraceError(
                    f"{folder}: rows of {path!r} in {tier} are missing or have another size; "
                    "save the model again"
                )


def _give_dense(model: nn.Module, arrays: dict[str, Tensor], folder: Path) -> None:
    """Give a model its dense weights."""
    saved = {
        name.removeprefix(DENSE): arrays.pop(name)
        for name in list(arrays)
        if name.startswith(DENSE)
    }
    present = dense_state(model)
    for name in (*present, *saved):
        told = [tuple(held[name].shape) if name in held else None for held in (present, saved)]
        if told[0] != told[1]:
            raise PlanMismatch(
                f"{folder}: {name!r} has shape {told[1]} in the folder and {told[0]} in the model; "
                "load it with the model that was converted"
            )
    for name, tensor in saved.items():
        owner, _, own_name = name.rpartition(".")
        module = model.get_submodule(owner)
        if own_name in module._parameters:
            module._parameters[own_name] = nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[own_name] = tensor


def _give_masters(arrays: dict[str, Tensor]) -> Masters | None:
    """Return the float rows for deltas, mapped."""
    ends = "/items"
    keys = [name[len(MASTERS) : -len(ends)] for name in arrays if name.endswith(ends)]
    tables = {
        key: MasterRows(arrays[f"{MASTERS}{key}/items"], arrays[f"{MASTERS}{key}/rows"])
        for key in keys
    }
    return Masters(tables) if tables else None


def _read_document(folder: Path) -> dict[str, Any]:
    """Read ``served.json`` and check that it is what was written."""
    document = read_json(folder / f"{NAME}.json", NAME)
    if document.get("schema") != SCHEMA:
        raise GraceError(
            f"{folder}: schema {document.get('schema')!r}, this version reads {SCHEMA}"
        )
    if document.pop("document_sha256", None) != _document_sha256(document):
        raise GraceError(f"{folder}/{NAME}.json: was changed after it was written; save it again")
    return document


def _document_sha256(document: dict[str, Any]) -> str:
    """Hash JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    """Hash a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _load_script(folder: Path, document: dict[str, Any]) -> nn.Module:
    """Read PyTorch's own archive."""
    file = folder / SCRIPT_FILE
    if not file.is_file() or _sha256(file) != document.get("script_sha256"):
        raise GraceError(f"{file}: is missing or was changed after it was written; save it again")
    script: nn.Module = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
    return script


def _conversion(document: dict[str, Any], plan: Plan, folder: Path) -> Conversion:
    """Return how the model was converted."""
    try:
        found = Conversion(**document["conversion"])
    except (TypeError, KeyError, ValueError) as error:
        raise GraceError(f"{folder}: conversion is not readable ({error}); save again") from error
    if found.row_types.keys() != plan.tables.keys():
        raise GraceError(f"{folder}: row types are not those of its plan; save the model again")
    return found


def _stats_to_json(served: Served) -> dict[str, Any] | None:
    """Return the costs of the operators as JSON values."""
    stats = None if served.scheduled is None else served.scheduled.stats
    return None if stats is None else asdict(stats)


def _stats_from_json(document: Any, folder: Path) -> OpStats | None:
    """Read the costs of the operators."""
    if document is None:
        return None
    try:
        stats = tuple(OpStat(**stat) for stat in document["stats"])
        return OpStats(document["fingerprint"], document["source"], document["device"], stats)
    except (TypeError, KeyError) as error:
        raise GraceError(f"{folder}: costs are not readable ({error}); save again") from error
