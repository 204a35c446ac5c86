"""The verbs of the package, and nothing else.

Flow: profile -> plan -> accelerate_ -> verify; rewrite in the loader, rebuild_sums_ after a load,
restore_ to undo.
TorchRec is imported when a verb is called, so analysis works without it.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.arguments import expect, expect_batches, expect_model
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.sharding import Ranks, make_sharded_plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.readers.kjt import from_kjts

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints

    from grace_torchrec.modules.swap import Swapped
    from grace_torchrec.modules.verified import Verified


def profile(batches: Iterable[Any], model: "nn.Module") -> Profile:
    """Record the bags of every table of ``model`` from batches.

    Args:
        batches: KeyedJaggedTensors, or tuples of model arguments that hold one or more each.
        model: Its stock EmbeddingBagCollections name the tables and features.

    Returns:
        A profile of every table whose features the batches have; a warning names the tables and
        features that they have not.

    Raises:
        GraceError: there are no batches, one holds no KeyedJaggedTensor or not as many as the
            first, two of a batch hold a feature, a table reads of several, no table reads a
            feature of theirs, or an id is outside its table.
        NotSupported: the model holds no stock collection, two tables of the same name, or a table
            of a type other than fp32 and fp16; or a batch is VBE.
    """
    expect_model("profile", model)
    expect_batches("profile", batches)
    specs = table_specs(model)
    if not specs:
        raise _no_collection("profile", model)
    bags = [_keyed_bags(batch, f"batch {number}") for number, batch in enumerate(batches)]
    if not bags:
        raise GraceError("profile: no batches were given; give one or more")
    for number, parts in enumerate(bags):
        if len(parts) != len(bags[0]):
            raise GraceError(
                f"profile: batch {number} holds {len(parts)} KeyedJaggedTensors, batch 0 "
                f"{len(bags[0])}; give batches of one kind"
            )
    held_in = _feature_places(bags[0])
    tables: dict[str, TableProfile] = {}
    for spec in specs:
        features = tuple(feature for feature in spec.features if feature in held_in)
        places = sorted({held_in[feature] for feature in features})
        if len(places) > 1:
            raise GraceError(
                f"profile: table {spec.name!r} reads features of {len(places)} KeyedJaggedTensors; "
                "record the calls with TraceRecorder(model, max_overhead=None).attach()"
            )
        if features:
            try:
                part = [parts[places[0]] for parts in bags]
                trace = from_kjts(part, features, num_items=spec.num_rows)
            except NotSupported as error:
                raise NotSupported(f"profile: {error}") from error
            except GraceError as error:
                raise GraceError(f"profile: table {spec.name!r}: {error}") from error
            tables[spec.name] = TableProfile(trace, features)
    if not tables:
        raise GraceError(
            f"profile: batches hold the features {sorted(held_in)}, the tables of the model read "
            f"{sorted({feature for spec in specs for feature in spec.features})}; give batches of "
            "this model"
        )
    absent = {
        spec.name: [feature for feature in spec.features if feature not in held_in]
        for spec in specs
    }
    if told := [f"{name} ({', '.join(features)})" for name, features in absent.items() if features]:
        warnings.warn(
            f"profile: not recorded, as no batch has the feature: {'; '.join(told)}; a table that "
            "is not in the profile is left stock",
            UserWarning,
            stacklevel=2,
        )
    return Profile(tables)


def plan(
    model: "nn.Module",
    profile: Profile,
    memory: MemoryModel,
    options: PlanOptions | None = None,
    *,
    world_size: int | None = None,
    local_world_size: int | None = None,
    batch_size: int = 512,
    constraints: "Mapping[str, ParameterConstraints] | None" = None,
    in_order: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Decide for every table of ``model`` what to store and where.

    Args:
        model: Its stock EmbeddingBagCollections are planned for.
        profile: Recorded bags; tables it lacks are left stock.
        memory: The machine that will serve, e.g. ``MemoryModel.named("h200")``.
        options: Budget, least gain, and how ids and lookups are treated.
        world_size: Ranks that will hold the model (default: it is not sharded).  ``memory`` is
            then the HBM of each rank and the host memory of each host, and the plan says which
            rank holds what: ``plan.sharding``.
        local_world_size: Ranks of a host (default: all).
        batch_size: Bags of a feature in the batch of a rank.
        constraints: TorchRec's constraints for tables of the swapped model, such as a message of
            NoPlan tells; they go before what the plan would do.  For ranks only.
        in_order: The bags are in random order already: their last fifth is validation.
        progress: Called with a line of text as the work goes on.

    Returns:
        A plan; "leave stock" with a reason is a decision like any other.

    Raises:
        PlanMismatch: the profile belongs to another model; names the table and both values.
        NoPlan: the tables fit in no memory; names the table, what it needs and what there is.
        NotSupported: the model holds no stock collection, two tables of the same name, or a table
            of a type other than fp32 and fp16.
        GraceError: an argument is something else, or a number is out of range.
    """
    expect_model("plan", model)
    expect("plan", "profile", profile, Profile)
    if not isinstance(memory, MemoryModel):
        raise GraceError(
            f"plan: memory is {memory!r}, a MemoryModel is expected, e.g. MemoryModel.named('h200')"
        )
    if options is not None and not isinstance(options, PlanOptions):
        raise GraceError(f"plan: options are {options!r}, a PlanOptions is expected")
    specs, options = table_specs(model), options or PlanOptions()
    if not specs:
        raise _no_collection("plan", model)
    if world_size is None:
        if constraints or local_world_size is not None:
            raise GraceError("plan: constraints and local_world_size need world_size")
        return make_plan(specs, profile, memory, options, in_order=in_order, progress=progress)
    if constraints is not None:
        expect("plan", "constraints", constraints, Mapping)
    ranks = Ranks(world_size, local_world_size, batch_size, constraints or {})
    return make_sharded_plan(
        specs, profile, memory, options, ranks, in_order=in_order, progress=progress
    )


def accelerate_(
    model: "nn.Module",
    plan: Plan,
    *,
    filter_fn: "Callable[[nn.Module, str], bool] | None" = None,
    tables: Collection[str] | None = None,
    strict: bool = False,
) -> "Swapped":
    """Swap every stock collection of ``model`` that the plan helps, in place.

    Parameters are adopted, not copied; state-dict keys, output keys and values stay the same.
    Everything is checked before the first module is changed.

    Args:
        model: In eval mode, before DistributedModelParallel.
        plan: Made for the tables of this model.
        filter_fn: ``(module, path) -> bool``: False leaves a collection stock.
        tables: Names of tables that may use sums (default: all the plan helps).
        strict: Refuse batches whose weights would be ignored (default: warn once).

    Returns:
        What was swapped, and what was left alone and why.

    Raises:
        PlanMismatch: the plan was made for other tables; names the table and both values.
        NotSupported: the model is in training mode, is itself a collection, or holds none; or a
            table is on a device, or of a type, that has no kernels.
        GraceError: ``tables`` names a table the model lacks.
    """
    expect_model("accelerate_", model)
    expect("accelerate_", "plan", plan, Plan)
    from grace_torchrec.modules import swap

    return swap.accelerate_(model, plan, filter_fn=filter_fn, tables=tables, strict=strict)


def restore_(model: "nn.Module", swapped: "Swapped") -> None:
    """Undo :func:`accelerate_`: the stock modules come back with the present Parameters.

    Args:
        model: The swapped model.
        swapped: What :func:`accelerate_` returned for it; not for a model that it is a copy of.

    Raises:
        PlanMismatch: a path of ``swapped`` holds no swapped module, or one of another model;
            nothing is changed then.
        NotSupported: a module is sharded: restore before DistributedModelParallel.
    """
    expect_model("restore_", model)
    from grace_torchrec.modules import swap

    expect("restore_", "swapped", swapped, swap.Swapped)
    swap.restore_(model, swapped)


def rebuild_sums_(model: "nn.Module", *, progress: Callable[[str], None] | None = None) -> int:
    """Build every stored row of ``model`` anew; return how many rows that were.

    Needed after weights were changed by hand; a ``load_state_dict`` does it by itself.  Under
    DistributedModelParallel it is needed after sharding and after each load: every rank calls it.

    Args:
        model: A swapped model, sharded or not.
        progress: Called with a line of text as the work on a sharded model goes on.

    Raises:
        GraceError: the model holds no swapped module, or a pipeline holds it.
    """
    expect_model("rebuild_sums_", model)
    from grace_torchrec.modules import swap

    return swap.rebuild_sums_(model, progress)


def rewrite(batches: Iterable[Any], model: "nn.Module", prefetch: int = 1) -> Iterator[Any]:
    """Turn bags into rows ahead of the model: each batch comes with a RewrittenBatch for its bags.

    The next batches are rewritten on a background thread while one is used.  In the collate
    function of a loader: ``next(grace.rewrite([batch], model, prefetch=0))``.  The first error, of
    ``batches`` or of a batch, is raised when its batch is asked for, after all batches before it,
    and ends the iterator; closing or dropping it early ends the thread.

    Args:
        batches: KeyedJaggedTensors, or tuples or lists that hold one each.  They are taken from
            ``batches`` in the caller's thread, up to ``prefetch`` ahead.
        model: A swapped model.
        prefetch: How many batches to be ahead; 0 rewrites each when it is asked for.

    Returns:
        The batches in order; for the swapped modules of ``model`` they answer what plain ones do.

    Raises:
        GraceError: the model holds no swapped module, or ``prefetch`` is no number >= 0; from the
            iterator, a batch holds no bags or more than one, or they are malformed.
        OutsideTable: from the iterator, an id is outside its table under ``raise``.
    """
    expect_model("rewrite", model)
    expect_batches("rewrite", batches)
    from grace_torchrec.modules import rewrite_ahead

    return rewrite_ahead.rewrite(batches, model, prefetch)


def verify(model: "nn.Module", batches: Iterable[Any]) -> "Verified":
    """Compare every swapped module with the originals kept inside, on the batches it receives.

    All stored rows are compared with the rows they sum, too. Plain bags are rewritten for tables planned
    ``ahead``, to prove their sums; what is counted is what serving the bags as given reads, and the
    ``note`` of the result says so.

    Args:
        model: A swapped model.
        batches: What the model takes: a tuple of arguments, or one argument.

    Returns:
        Errors, counts and verdict of each table. A stale table is part of the result, and so is one
        that uses sums and was never looked up: it is not equal, ``unproven`` says why.

    Raises:
        GraceError: the model holds no swapped module, or there are no batches.
        NotSupported: a module is sharded, or in training mode.
        OutsideTable: an id is outside its table under ``raise``.
    """
    expect_model("verify", model)
    expect_batches("verify", batches)
    from grace_torchrec.modules import verify as verification

    return verification.verify(model, batches)


def _no_collection(verb: str, model: "nn.Module") -> GraceError:
    """Return the error of a model without a stock collection."""
    from grace_torchrec.modules.refusals import no_collection

    return no_collection(verb, model)


def _keyed_bags(batch: Any, where: str) -> list[Any]:
    """Return the KeyedJaggedTensors of a batch, one or more."""
    parts = batch if isinstance(batch, list | tuple) else (batch,)
    found = [part for part in parts if hasattr(part, "lengths_or_none")]
    if not found:
        raise GraceError(
            f"profile: {where} holds 0 KeyedJaggedTensors, one expected; give the "
            "KeyedJaggedTensor alone, or a tuple that holds it"
        )
    return found


def _feature_places(bags: list[Any]) -> dict[str, int]:
    """Return feature -> which KeyedJaggedTensor of a batch holds it."""
    places: dict[str, int] = {}
    for place, part in enumerate(bags):
        for feature in list(part.keys()):
            if places.setdefault(feature, place) != place:
                raise GraceError(
                    f"profile: feature {feature!r} is in two KeyedJaggedTensors of a batch; record "
                    "the calls with TraceRecorder(model, max_overhead=None).attach()"
                )
    return places
