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
    """Return the Served that an engine answers with; None: it answers with the rows of the model.

    Args:
        engine: That of this package says what it ``served``; one of somebody's own may not.
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


class Place:
    """Knows what is served.

    Args:
        model: The stock model.
        target: An engine; a Served or None: whoever asks for ``answering`` serves it.
        served: What is served now; None: the stock model.
        recorder: Follows what answers, where it is attached to it.
    """

    def __init__(
        self, model: nn.Module, target: object, served: Served | None, recorder: TraceRecorder
    ) -> None:
        self._model, self._recorder = model, recorder
        self._engine = target if isinstance(target, Serves) else None
        self._served, self._is_owner_known = served, False
        if self._engine is not None:
            with suppress(TypeError):  # an engine of somebody's own that takes no weak references
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
        if isinstance(answers, Served) and answers is not self._served:
            raise GraceError(
                "Refresher: the engine was given another model past this Refresher; stop it and make "
                "one that knows what is served"
            )

    @property
    def served(self) -> Served | None:
        """What is served; None: the stock model."""
        return self._served

    @property
    def answering(self) -> nn.Module:
        """What answers."""
        return self._model if self._served is None else self._served

    @property
    def plan(self) -> Plan | None:
        """The plan of what is served; None: the stock model is."""
        return None if self._served is None else self._served.plan

    def replace(self, served: Served) -> None:
        """Serve another model from the next batch on; errors as of :meth:`check`."""
        self.check()
        if self._engine is not None:
            self._engine.replace(served)
            if self._served is None:
                self._engine.use_stock(False)
        self._change(served)

    def use_stock(self) -> None:
        """Serve the stock model from the next batch on; errors as of :meth:`check`."""
        self.check()
        if self._engine is not None:
            self._engine.use_stock(True)
        self._change(None)

    def _change(self, served: Served | None) -> None:
        """Note what answers now."""
        old, self._served = self.answering, served
        self._recorder.follow(old, self.answering)
