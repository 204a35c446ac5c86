"""The proof of a refresh: taken again where trained rows came between the two models.

Flow: new model -> *prove_it_answers* -> catches up with deltas -> *prove_caught_up* -> the flip.
"""

from typing import Any

from torch import nn

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.serve.live_model import LiveModel
from grace_torchrec.serve.proof import prove
from grace_torchrec.serve.refresh_deltas import DeltaLog
from grace_torchrec.serve.refresh_record import Steps
from grace_torchrec.serve.served import Served
from grace_torchrec.traces.profile import Profile

PROOFS, WAIT_S = 8, 0.5  # most proofs of a new model, and from one to the next without a delta


def prove_it_answers(served: Served, example: tuple[Any, ...]) -> None:
    """Refuse a model that does not answer a whole batch the way an engine asks it.

    The other proof goes collection by collection, which no request does.

    Args:
        served: The new model.
        example: The model's positional arguments.

    Raises:
        Exception: whatever it raises.
    """
    live = LiveModel(served, None)
    live.compute(live.prepare(cloned(example)))


def prove_caught_up(
    model: nn.Module, served: Served, profile: Profile, deltas: DeltaLog, steps: Steps
) -> int:
    """Refuse a model that computes something else than the stock one; return deltas caught up.

    Rows are in the stock model before they are published: a proof that fails may have come
    between, so the next one waits for them.

    Args:
        model: The stock model.
        served: The new one.
        profile: Recorded bags.
        deltas: What the new one missed.
        steps: Told the largest difference.

    Raises:
        GraceError: it does, in proof after proof.
    """
    caught_up = 0
    for left in reversed(range(PROOFS)):
        with deltas.lock:
            caught_up += deltas.catch_up(served)
        proof = prove(model, served, profile)
        steps.worst = proof.worst
        if proof:
            return caught_up
        if left:
            deltas.came.wait(WAIT_S)
    raise GraceError(
        f"{proof.where}: a pooled value is {proof.worst:.3g} times as far from the stock model's "
        f"as rounding allows, after {PROOFS} proofs; "
        + (
            "deltas come faster than proofs, publish fewer at a time"
            if deltas.came.is_set()
            else "were rows written and not published?"
        )
    )
