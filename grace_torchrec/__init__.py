"""grace-torchrec: stored partial sums and two-memory placement for TorchRec lookups.

The public names load on first use, so ``import grace_torchrec`` loads neither torch nor numpy.

The rooms, as the data flows: traces -> grouping -> sums -> plans -> modules (what to store), schedule (how
to run), where both meet serve; api.py has the verbs, cli and launch call them, views show values.  Beside
them calibration, models, demo, loadtest, doctor.  What a room is, and in which order to read it, says its docstring.

>>> import grace_torchrec as grace
>>> grace.Trace.from_bags([[0, 1], [1]]).num_ids
3
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grace_sharding.memory_tiers import MemoryModel as MemoryModel
    from grace_torchrec.api import accelerate_ as accelerate_
    from grace_torchrec.api import plan as plan
    from grace_torchrec.api import profile as profile
    from grace_torchrec.api import rebuild_sums_ as rebuild_sums_
    from grace_torchrec.api import restore_ as restore_
    from grace_torchrec.api import rewrite as rewrite
    from grace_torchrec.api import verify as verify
    from grace_torchrec.calibration.machine import calibrate as calibrate
    from grace_torchrec.errors import GraceError as GraceError
    from grace_torchrec.errors import NoPlan as NoPlan
    from grace_torchrec.errors import NotSupported as NotSupported
    from grace_torchrec.errors import PlanMismatch as PlanMismatch
    from grace_torchrec.errors import StaleSums as StaleSums
    from grace_torchrec.modules.embedding_bag_collection import (
        GraceEmbeddingBagCollection as GraceEmbeddingBagCollection,
    )
    from grace_torchrec.modules.rewritten_batch import RewrittenBatch as RewrittenBatch
    from grace_torchrec.modules.swap import Swapped as Swapped
    from grace_torchrec.plans.plan import Plan as Plan
    from grace_torchrec.plans.plan import PlanOptions as PlanOptions
    from grace_torchrec.schedule.stream_pass import schedule_ as schedule_
    from grace_torchrec.serve.convert import convert as convert
    from grace_torchrec.serve.delta import publish_delta as publish_delta
    from grace_torchrec.serve.engine import Engine as Engine
    from grace_torchrec.serve.files import load_served as load_served
    from grace_torchrec.serve.refresh import Refresher as Refresher
    from grace_torchrec.serve.served import Served as Served
    from grace_torchrec.traces.profile import Profile as Profile
    from grace_torchrec.traces.recorder import TraceRecorder as TraceRecorder
    from grace_torchrec.traces.trace import Trace as Trace

    __version__: str

_EXPORTS = {  # public name -> the module that defines it
    "Engine": "grace_torchrec.serve.engine",
    "GraceEmbeddingBagCollection": "grace_torchrec.modules.embedding_bag_collection",
    "GraceError": "grace_torchrec.errors",
    "MemoryModel": "grace_sharding.memory_tiers",
    "NoPlan": "grace_torchrec.errors",
    "NotSupported": "grace_torchrec.errors",
    "Plan": "grace_torchrec.plans.plan",
    "PlanMismatch": "grace_torchrec.errors",
    "PlanOptions": "grace_torchrec.plans.plan",
    "Profile": "grace_torchrec.traces.profile",
    "Refresher": "grace_torchrec.serve.refresh",
    "RewrittenBatch": "grace_torchrec.modules.rewritten_batch",
    "Served": "grace_torchrec.serve.served",
    "StaleSums": "grace_torchrec.errors",
    "Swapped": "grace_torchrec.modules.swap",
    "Trace": "grace_torchrec.traces.trace",
    "TraceRecorder": "grace_torchrec.traces.recorder",
    "accelerate_": "grace_torchrec.api",
    "calibrate": "grace_torchrec.calibration.machine",
    "convert": "grace_torchrec.serve.convert",
    "load_served": "grace_torchrec.serve.files",
    "plan": "grace_torchrec.api",
    "profile": "grace_torchrec.api",
    "publish_delta": "grace_torchrec.serve.delta",
    "rebuild_sums_": "grace_torchrec.api",
    "restore_": "grace_torchrec.api",
    "rewrite": "grace_torchrec.api",
    "schedule_": "grace_torchrec.schedule.stream_pass",
    "verify": "grace_torchrec.api",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> object:
    """Load a public name, or ``__version__``, on first use (PEP 562).

    Raises:
        AttributeError: no public name is called ``name``; close ones are listed.
    """
    if name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(_unknown(name), name=name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names beside what is loaded already."""
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    """Version of the installed distribution; ``0+unknown`` where only the source tree is on the path."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("grace-torchrec")
    except PackageNotFoundError:
        return "0+unknown"


def _unknown(name: str) -> str:
    """Message for a name that does not exist, with up to three public names like it."""
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=3)
    hint = f"; did you mean {', '.join(close)}?" if close else ""
    return f"module 'grace_torchrec' has no attribute {name!r}{hint}"
