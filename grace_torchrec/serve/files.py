"""Served files: a converted model as a folder, and its way back.

Flow: Served -> ``served.json`` + ``arrays.safetensors`` + the plan's own folder (``plan/``) ->
*load_served* with the model's code -> Served.  The folder holds every number (tables, stored sums,
dense weights and tensor attributes, float rows for deltas, costs of operators),
so nothing is built or measured again; the
model gives its structure, and may be made on the meta device.  Nothing is ever unpickled.
A TorchScript target is saved as PyTorch's own archive beside them.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grace_torchrec import artifact
from grace_torchrec.arguments import expect_model
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.files import check_plan_fits
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.plans.texts import quoted
from grace_torchrec.serve.convert import assemble, refused_modules_of, with_table_batches
from grace_torchrec.serve.copies import skeleton_of
from grace_torchrec.serve.dense_state import (
    dense_state,
    give_dense,
    give_plain_tensors,
    plain_tensors,
)
from grace_torchrec.serve.document import NAME, WHAT, described, read_served
from grace_torchrec.serve.mapped_arrays import read_arrays, write_arrays
from grace_torchrec.serve.masters import MasterRows, Masters, fits_table
from grace_torchrec.serve.served import Served, ServedModel
from grace_torchrec.serve.slots import Slots
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.serve.table_pieces import batches_of, give_memory
from grace_torchrec.strict_files import plain_file

SCRIPT_FILE = "model.ts"
DENSE, ATTRIBUTES, TABLES, MASTERS = "dense/", "attributes/", "tables/", "masters/"
HASHED_AT_ONCE = 1 << 20  # bytes
MASTER_PARTS = ("items", "rows")


def save_served(served: Served, path: str | os.PathLike[str]) -> None:
    """Write the folder whole or not at all, as of the version that readers see now.

    Raises:
        GraceError: ``path`` is something else than such a folder, or cannot be written.
        NotSupported: the tables are sharded.
    """
    with served.one_delta, served.slots.reading() as (model, version):
        arrays, script = _arrays(served, model), None
        with artifact.new_folder(path, NAME) as folder:
            served.plan.save(folder / "plan")
            if served.conversion.target == "torchscript":
                torch.jit.save(model.module, str(folder / SCRIPT_FILE))
                script = _sha256(folder / SCRIPT_FILE)
            checksum = write_arrays(folder / artifact.ARRAYS_FILE, arrays)
            document = described(served, version, checksum, script)
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
    expect_model("load_served", model)
    folder = Path(path)
    document = read_served(folder)
    plan, conversion = Plan.load(folder / "plan"), document.conversion
    if conversion.row_types.keys() != plan.tables.keys():
        raise GraceError(f"{folder}: row types are not those of its plan; save the model again")
    skeleton, originals = skeleton_of(model)
    check_plan_fits(plan, table_specs(skeleton))
    arrays = read_arrays(folder / artifact.ARRAYS_FILE, document.arrays_checksum, WHAT)
    eager, collections = with_table_batches(skeleton, originals, plan, conversion, "meta")
    refused = refused_modules_of(model)
    if conversion.target == "torchscript":
        script = ServedModel(_load_script(folder, document.script_sha256), eager, collections)
        return Served(Slots(script), plan, conversion, None, None, refused)
    _give_rows(collections, arrays, folder)
    _give_dense(eager, arrays, folder)
    masters = _take_masters(collections, arrays, folder)
    if arrays:
        raise GraceError(
            f"{folder}: holds arrays of nothing ({quoted(min(arrays))}); save it again"
        )
    served = assemble(
        eager, collections, plan, conversion, example, masters, refused, document.stats,
        document.schedule, document.version,
    )  # fmt: skip
    served.build_s = time.perf_counter() - begin
    return served


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
    for prefix, found in ((DENSE, dense_state), (ATTRIBUTES, plain_tensors)):
        arrays |= {f"{prefix}{name}": tensor for name, tensor in found(model.eager).items()}
    for key, rows in served.masters.tables.items() if served.masters is not None else ():
        for part, array in zip(MASTER_PARTS, (rows.items_G, rows.rows_GD), strict=True):
            arrays[f"{MASTERS}{key}/{part}"] = array
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
    """Give a model its dense weights and the tensors of its attributes."""
    for prefix, give in ((DENSE, give_dense), (ATTRIBUTES, give_plain_tensors)):
        names = [name for name in arrays if name.startswith(prefix)]
        give(model, {name.removeprefix(prefix): arrays.pop(name) for name in names}, str(folder))


def _take_masters(
    collections: Mapping[str, TableBatchCollection], arrays: dict[str, Tensor], folder: Path
) -> Masters | None:
    """Return the float rows for deltas, mapped; None where none were kept."""
    tables: dict[str, MasterRows] = {}
    specs = [plan.spec for held in collections.values() for plan in held.table_plans]
    for spec in specs:
        items, rows = (arrays.pop(f"{MASTERS}{spec.key}/{part}", None) for part in MASTER_PARTS)
        if items is None or rows is None:
            continue
        if not fits_table(items, rows, spec):
            raise GraceError(
                f"{folder}: float rows of table {spec.key!r} are not those of such a table; "
                "save the model again"
            )
        tables[spec.key] = MasterRows(items, rows)
    if tables and len(tables) < len(specs):
        raise GraceError(f"{folder}: float rows of a table are missing; save the model again")
    return Masters(tables) if tables else None


def _sha256(file: Path) -> str:
    """Hash a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(HASHED_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()


def _load_script(folder: Path, sha256: str | None) -> nn.Module:
    """Read PyTorch's own archive."""
    file = folder / SCRIPT_FILE
    plain_file(file, WHAT)
    if _sha256(file) != sha256:
        raise GraceError(f"{file}: was changed after it was written; save the model again")
    script: nn.Module = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
    return script
