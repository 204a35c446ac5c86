"""Stock plans: a sharding plan of TorchRec in the form in which our own plans are looked at.

Flow: ShardingPlan, or a JSON file with the same content -> *PlanSummary* -> inspect, diff.
The JSON form is ``{"plan": {module: {table: {"sharding_type", "compute_kernel", "ranks", "shards":
[{"shard_offsets", "shard_sizes", "placement"}]}}}}``, which is how TorchRec itself serialises a
plan; the text that ``print`` shows has lost where a module begins, so it is not read.
Derived: the memory of a shard, told from its device and compute kernel; bytes, since a sharding plan
names no types (the model does, if it is given; else 4 bytes a value).
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.parse import part
from grace_torchrec.plans.summary import PlanSummary, TableSummary, TierPart
from grace_torchrec.plans.table_spec import BYTES_OF, TableSpec
from grace_torchrec.strict_files import read_json

VALUE_BYTES = BYTES_OF["fp32"]
AGAIN = "write the sharding plan again"
NO_PLAN = (
    "this is no plan of grace-torchrec, which is a folder, and no sharding plan of TorchRec, which is "
    "JSON: give one of them"
)


def stock_document(plan: Any) -> dict[str, Any]:
    """Return a ``torchrec.distributed.types.ShardingPlan`` as JSON values.

    Args:
        plan: The sharding plan; only its public attributes are read.
    """
    modules: dict[str, Any] = {}
    for path, module in plan.plan.items():
        modules[path] = {}
        for name, sharding in module.items():
            entry = {
                "sharding_type": sharding.sharding_type,
                "compute_kernel": sharding.compute_kernel,
                "ranks": sharding.ranks,
            }
            shards = getattr(sharding.sharding_spec, "shards", None)
            if shards is not None:
                entry["shards"] = [
                    {
                        "shard_offsets": list(shard.shard_offsets),
                        "shard_sizes": list(shard.shard_sizes),
                        "placement": str(shard.placement),
                    }
                    for shard in shards
                ]
            modules[path][name] = entry
    plain: dict[str, Any] = json.loads(json.dumps({"plan": modules}))
    return plain


def read_stock_plan(path: Path) -> PlanSummary:
    """Read the JSON form of a sharding plan.

    Raises:
        GraceError: the file cannot be read, or holds something else.
    """
    document = read_json(path, "sharding plan", NO_PLAN)
    if not isinstance(document.get("plan"), dict):
        raise GraceError(
            f"{path}: is no sharding plan of TorchRec in JSON, which has the key 'plan'; a plan of "
            "grace-torchrec is a folder, name the folder"
        )
    return summarise_stock(document, str(path))


def summarise_stock(
    document: Mapping[str, Any], source: str, specs: tuple[TableSpec, ...] = ()
) -> PlanSummary:
    """Return what a sharding plan says.

    Args:
        document: Its JSON form.
        source: Where it was read, for people and for errors.
        specs: Tables of the model it is for, which tell bytes and rows of unsharded tables.

    Raises:
        GraceError: the document does not have that form.
    """
    known = {spec.key: spec for spec in specs}
    tables = []
    for path, module in part(document, "plan", dict, source).items():
        if not isinstance(module, dict):
            raise GraceError(f"{source}: module {path!r} is no JSON object; {AGAIN}")
        for name, entry in module.items():
            key = f"{path}.{name}" if path else name
            if not isinstance(entry, dict):
                raise GraceError(f"{source}: table {key} is no JSON object; {AGAIN}")
            tables.append(_table(key, entry, known.get(key), f"{source}: table {key}"))
    settings = {"value_bytes": "of the model" if specs else f"{VALUE_BYTES} (assumed)"}
    return PlanSummary("torchrec", source, "not said", {}, _same_tiers(tables), settings)


def _same_tiers(tables: list[TableSummary]) -> tuple[TableSummary, ...]:
    """Give every table a part in every memory that one of them uses."""
    names = sorted({part.tier for table in tables for part in table.tiers})
    return tuple(
        replace(
            table,
            tiers=tuple(
                next((p for p in table.tiers if p.tier == name), TierPart(name, 0, bytes=0))
                for name in names
            ),
        )
        for table in tables
    )


def _table(key: str, entry: Mapping[str, Any], spec: TableSpec | None, where: str) -> TableSummary:
    """Read one table."""
    kernel, sharding = (
        part(entry, "compute_kernel", str, where),
        part(entry, "sharding_type", str, where),
    )
    listed = part(entry, "shards", list, where) if "shards" in entry else []
    shards = [_shard(shard, where) for shard in listed]
    num_rows = max((offsets[0] + sizes[0] for offsets, sizes, _ in shards), default=None)
    dim = max((offsets[1] + sizes[1] for offsets, sizes, _ in shards), default=None)
    value_bytes = BYTES_OF[spec.dtype] if spec else VALUE_BYTES
    if spec is not None:
        num_rows, dim = num_rows or spec.num_rows, dim or spec.dim
    row_bytes = None if dim is None else dim * value_bytes
    parts: dict[str, TierPart] = {}
    for (_, columns), sizes, placement in shards:
        tier = memory_of(kernel, placement)
        before = parts.get(tier, TierPart(tier, 0, bytes=0))
        rows = sizes[0] if columns == 0 else 0  # a row counts where its first column is
        parts[tier] = replace(
            before,
            originals=(before.originals or 0) + rows,
            bytes=(before.bytes or 0) + sizes[0] * sizes[1] * value_bytes,
        )
    if not shards:  # every rank holds the whole table
        tier = memory_of(kernel, "")
        whole = None if num_rows is None or row_bytes is None else num_rows * row_bytes
        parts[tier] = TierPart(tier, num_rows, bytes=whole)
    return TableSummary(
        table=key,
        verdict="stock",
        verdict_told="stock",
        method=sharding,
        lookup=kernel,
        reason=_where_it_is(sharding, [placement for _, _, placement in shards]),
        num_rows=num_rows,
        row_bytes=row_bytes,
        tiers=tuple(parts.values()),
    )


def _shard(shard: Any, where: str) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Read (offsets, sizes, placement) of one shard."""
    if not isinstance(shard, dict):
        raise GraceError(f"{where}: a shard is no JSON object; {AGAIN}")
    pairs = []
    for name in ("shard_offsets", "shard_sizes"):
        value = shard.get(name)
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(x) is int and 0 <= x < 2**48 for x in value)
        ):
            raise GraceError(f"{where}: {name} must be two integers >= 0, got {value!r}; {AGAIN}")
        pairs.append((value[0], value[1]))
    return pairs[0], pairs[1], part(shard, "placement", str, where)


def memory_of(kernel: str, placement: str) -> str:
    """Return the memory that a compute kernel reads rows from: ``hbm``, ``host`` or ``ssd``.

    Args:
        kernel: Compute kernel of TorchRec.
        placement: Device of the shard, as in ``rank:0/cuda:0``.

    >>> memory_of("fused_uvm_caching", "rank:0/cuda:0"), memory_of("fused", "rank:0/cpu")
    ('host', 'host')
    """
    if "ssd" in kernel or kernel == "key_value":
        return "ssd"
    if "uvm" in kernel or "dram" in kernel or placement.endswith("cpu"):
        return "host"
    return "hbm"


def _where_it_is(sharding: str, placements: list[str]) -> str:
    """Say on which devices a table is."""
    devices = list(dict.fromkeys(placements))
    if not devices:
        return f"{sharding}, whole on every rank"
    some = ", ".join(devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else "")
    return f"{sharding}, {len(placements)} shard{'s' * (len(placements) > 1)} on {some}"
