"""The place where a model is served: an engine's, or one of its own.

Flow: Refresher -> *Place* -> ``engine.replace``, ``engine.use_stock``; or who asks for ``answering``.
"""

import weakref
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from torch import nn

from grace_torchrec.arguments import told
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import stock_collections
from grace_torchrec.serve.served import Served
from grace_torchrec.traces.recorder import TraceRecorder


@runtime_checkable
class Serves(Protocol):
    """What an engine can do."""

    def replace(self, served: Served) -> None:
        """Serve another model from the next batch on."""

    def use_stock(self, on: bool) -> None:
        """Serve the stock model, or no more."""


def served_by(engine: Serves, given: Served | None, model: nn.Module) -> Served | None:
    """Return the Served of an engine; None: it answers with the rows of the model.

    Args:
        engine: That of this package says what it ``served``, also while its stock model answers; one
            of somebody's own may not.
        given: What the caller says that it serves.
        model: The stock model.

    Raises:
        GraceError: it answers with something else than the caller says, or with neither a Served
            nor the rows of the model, so that trained rows would never reach it.
    """
    answers = getattr(engine, "served", None)
    if not isinstance(answers, nn.Module) or answers is given:
        return given
    if given is not None:
        raise GraceError(
            f"Refresher: served is not what the engine answers with, which is {told(answers)}; "
            "leave served out"
        )
    if isinstance(answers, Served):
        return answers
    rows = [
        bag.weight
        for collection in dict(stock_collections(model)).values()
        for bag in collection.embedding_bags.values()
    ]
    held = {id(parameter) for parameter in answers.parameters()}
    if not all(id(weight) in held for weight in rows):
        raise GraceError(
            f"Refresher: the engine answers with {told(answers)}, which is no Served and holds "
            "other rows than model; give the engine that model or a Served, or pass its own model"
        )
    return None


# Engine -> who refreshes it.
_OWNERS: "weakref.WeakKeyDictionary[Any, weakref.ref[Place]]" = weakref.WeakKeyDictionary()
# Those that a refresher let fall back; where others asked for the stock model, it is theirs to end.
_FALLEN_BACK: "weakref.WeakSet[Any]" = weakref.WeakSet()
HELD = "_held_refresher"  # an engine's attribute; a registry's own hold would keep both for ever


class Place:
    """Knows what is served.

    Args:
        model: The stock model.
        target: An engine; a Served or None: whoever asks for ``answering`` serves it.
        served: What is served now, maybe while stock answers; None: the stock model.
        recorder: Follows what answers, where it is attached to it.
    """

    def __init__(
        self, model: nn.Module, target: object, served: Served | None, recorder: TraceRecorder
    ) -> None:
        self._model, self._recorder = model, recorder
        self._engine = target if isinstance(target, Serves) else None
        self._live, self._is_owner_known, self._is_fallen_back = served, False, False
        if self._engine is not None:
            with suppress(TypeError):  # an engine of somebody's own that takes no weak references
                self._is_fallen_back = self._engine in _FALLEN_BACK
                _OWNERS[self._engine] = weakref.ref(self)
                self._is_owner_known = True

    def check(self) -> None:
        """Refuse to go on where another refresher or caller has given the engine a model.

        What is served is not what this one knows then: it would flip the other's model away, and
        give rows to a model that answers no more.

        Raises:
            GraceError: one has.
        """
        if self._is_owner_known and _OWNERS[self._engine]() is not self:
            raise GraceError(
                "Refresher: another Refresher serves this engine now; stop this one and use that"
            )
        answers = getattr(self._engine, "served", None)
        if isinstance(answers, Served) and answers is not self._live:
            raise GraceError(
                "Refresher: the engine was given another model past this Refresher; stop it and make "
                "one that knows what is served"
            )

    @property
    def live(self) -> Served | None:
        """The Served that answers, or will again when stock does no more: trained rows go to it."""
        return self._live

    @property
    def served(self) -> Served | None:
        """What is served; None: the stock model, also where a refresher let the engine fall back."""
        return None if self._is_fallen_back else self._live

    @property
    def answering(self) -> nn.Module:
        """What answers, unless somebody asked the engine for its stock model."""
        return self._model if self.served is None else self.served

    @property
    def plan(self) -> Plan | None:
        """The plan of what is served; None: the stock model is."""
        return None if self.served is None else self.served.plan

    def hold(self, refresher: object) -> bool:
        """Let the engine hold a refresher, which lives as long then; tell whether it does."""
        try:
            setattr(self._engine, HELD, refresher)
        except AttributeError:  # there is none, or it takes no attributes
            return False
        return True

    def let_go(self, refresher: object) -> None:
        """Let the engine hold a refresher no more."""
        if getattr(self._engine, HELD, None) is refresher:
            delattr(self._engine, HELD)

    def replace(self, served: Served) -> None:
        """Serve another model from the next batch on; errors as of :meth:`check`."""
        self.check()
        if self._engine is not None:
            self._engine.replace(served)
            if self.served is None:
                self._engine.use_stock(False)
        self._change(served, is_fallen_back=False)

    def use_stock(self) -> None:
        """Serve the stock model from the next batch on; errors as of :meth:`check`."""
        self.check()
        if self._engine is not None:
            self._engine.use_stock(True)
        self._change(None if self._engine is None else self._live, is_fallen_back=True)

    def _change(self, live: Served | None, *, is_fallen_back: bool) -> None:
        """Note what answers now."""
        old = self.answering
        self._live, self._is_fallen_back = live, is_fallen_back
        with suppress(TypeError):  # as where it was made
            (_FALLEN_BACK.add if is_fallen_back else _FALLEN_BACK.discard)(self._engine)
        self._recorder.follow(old, self.answering)
