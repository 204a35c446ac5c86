"""The place where a model is served: an engine's, or one of its own.

Flow: Refresher -> *Place* -> ``engine.replace``, ``engine.use_stock``; or who asks for ``answering``.
"""

import weakref
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from torch import nn

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import Plan
from grace_torchrec.serve.served import Served
from grace_torchrec.traces.recorder import TraceRecorder


@runtime_checkable
class Serves(Protocol):
    """What an engine can do."""

    def replace(self, served: Served) -> None:
        """Serve another model from the next batch on."""

    def use_stock(self, on: bool) -> None:
        """Serve the stock model, or no more."""


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
        """Refuse to go on where another refresher has taken the engine over.

        What is served is not what this one knows then: it would flip the other's model away, and
        give rows to a model that answers no more.

        Raises:
            GraceError: one has.
        """
        if self._is_owner_known and _OWNERS[self._engine]() is not self:
            raise GraceError(
                "Refresher: another Refresher serves this engine now; stop this one and use that"
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
