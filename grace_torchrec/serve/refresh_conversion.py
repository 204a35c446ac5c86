"""How a refresh converts: as what is served was, unless it is told otherwise.

Flow: Served + what the caller gives -> *conversion_of* -> arguments of ``convert``.
"""

from collections.abc import Mapping
from typing import Any

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.serve.served import Served


def conversion_of(
    served: Served | None, given: Mapping[str, Any], options: PlanOptions | None
) -> dict[str, Any]:
    """Return the arguments of ``convert`` beside model, plan and example.

    Args:
        served: What is served now; None: the stock model, and ``convert`` has its own defaults.
        given: By the caller, who is right key by key.
        options: Of the plans, where the caller gave some.

    Raises:
        NotSupported: scripted models are asked for.
        GraceError: the served model is sharded, and how is not given.
    """
    arguments = {**({} if served is None else _arguments(served, options)), **given}
    if arguments.get("target", "module") != "module":
        raise NotSupported(
            "Refresher: scripted models cannot be proven; use conversion={'target': 'module'}"
        )
    collections = {} if served is None else served.collections
    if "sharding" not in given and not all(c.is_whole for c in collections.values()):
        raise GraceError(
            "Refresher: the served model is sharded, and how cannot be told from it; pass "
            "conversion={'sharding': ...} as to convert"
        )
    return arguments


def _arguments(served: Served, options: PlanOptions | None) -> dict[str, Any]:
    """Return how a model was converted."""
    done = served.conversion
    arguments: dict[str, Any] = {
        "target": done.target,
        "slots": done.num_slots,
        "strict": done.strict,
        "deltas": served.masters is not None,
    }
    if (
        done.streams != Machine.streams
    ):  # the default, which is no wish: convert warns of one in vain
        arguments["streams"] = done.streams
    tables = served.plan.tables
    if options is not None and options.row_dtype != served.plan.options.row_dtype:
        return arguments  # other rows are wanted
    as_in_model = all(done.row_types[key] == table.spec.dtype for key, table in tables.items())
    return {**arguments, "row_dtype": "table" if as_in_model else max(done.row_types.values())}
