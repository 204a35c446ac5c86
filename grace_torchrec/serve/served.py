"""Served: a converted model that answers, and takes deltas between batches.

Flow: convert or load_served -> *Served* -> Engine, publish_delta, save.
It holds one or two slots (:mod:`grace_torchrec.serve.slots`): models over the same graph, whose
tables differ only while a delta is written.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.plans.plan import Plan
from grace_torchrec.schedule.stream_pass import Scheduled
from grace_torchrec.serve.copies import twin_of
from grace_torchrec.serve.masters import Masters
from grace_torchrec.serve.members import Members
from grace_torchrec.serve.slots import Slots
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.serve.torchscript import check_script_batch

Target = Literal["module", "torchscript"]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One slot: a model and the collections in it.

    Attributes:
        module: What is called: scheduled, as it was, or scripted.
        eager: The same modules, neither traced nor scheduled.
        collections: Dotted path -> the served form of a collection.
    """

    module: nn.Module
    eager: nn.Module
    collections: Mapping[str, TableBatchCollection]

    def with_own_rows(self) -> "ServedModel":
        """Return a second model with rows of its own, over the same graph and dense weights."""
        module, eager = twin_of(self.module, self.eager)
        held: dict[str, TableBatchCollection] = {}
        for path in self.collections:
            twin = eager.get_submodule(path)
            assert isinstance(twin, TableBatchCollection)
            twin.own_rows()
            held[path] = twin
        return ServedModel(module, eager, held)


@dataclass(frozen=True, eq=False)
class Answer:
    """An output, and the version of all rows behind it."""

    output: Any
    version: int


@dataclass(frozen=True)
class Conversion:
    """How a model was converted: what it takes to do it again.

    Attributes:
        target: ``module`` or ``torchscript``.
        row_types: Table key -> type of its rows.
        streams: Streams at most.
        num_slots: Slots, 1 or 2.
        bad_ids: What an id outside its table does.
        strict: Whether batches whose weights would be ignored are refused.
    """

    target: Target
    row_types: Mapping[str, str]
    streams: int
    num_slots: int
    bad_ids: str
    strict: bool


class Served(nn.Module):
    """A model to serve; calling it is safe from any number of threads.

    Args:
        slots: The models.
        plan: What they were converted by.
        conversion: How.
        scheduled: What became of the first slot's operators; None where they are not scheduled.
        masters: Float rows that deltas form sums from; None where no delta can be taken.

    Attributes:
        plan: As given.
        conversion: As given.
        scheduled: As given.
        refused: Dotted path -> why an embedding module was left as it was.
        build_s: Seconds that converting or loading took.
        one_delta: Held while a delta is formed and published.
        members: Which stored rows hold an item, made at the first delta of a table.
    """

    def __init__(
        self,
        slots: Slots[ServedModel],
        plan: Plan,
        conversion: Conversion,
        scheduled: Scheduled | None,
        masters: Masters | None,
        refused: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.slots = slots
        self.plan = plan
        self.conversion = conversion
        self.scheduled = scheduled
        self.masters = masters
        self.refused = dict(refused)
        self.build_s = 0.0
        self.one_delta = threading.Lock()
        self.members: dict[tuple[str, str], Members] = {}
        # Registered, so that grace_torchrec.rewrite(batches, served) finds the collections.
        self.model = slots.contents[0].eager
        self.training = False

    def forward(self, *batch: Any) -> Any:
        """Return what the model returns.

        Args:
            batch: The model's positional arguments; bags may come rewritten.

        Raises:
            GraceError: the target is ``torchscript`` and ``script_batch`` did not make the batch.
        """
        if self.conversion.target == "torchscript":
            check_script_batch(self.collections, batch)
        with self.slots.reading() as (served, _):
            if not torch.is_grad_enabled():
                return served.module(*batch)
            with torch.no_grad():
                return served.module(*batch)

    def answer(self, *batch: Any) -> Answer:
        """Return what the model returns, and the version of every row behind it."""
        if self.conversion.target == "torchscript":
            check_script_batch(self.collections, batch)
        with self.slots.reading() as (served, version), torch.no_grad():
            return Answer(served.module(*batch), version)

    def run_by(self, run: Callable[..., Any], *batch: Any) -> Any:
        """Return what ``run`` returns for the model inside, whose rows no delta changes meanwhile.

        Args:
            run: Called with the scheduled module and the batch.
            *batch: The model's positional arguments.
        """
        with self.slots.reading() as (served, _), torch.no_grad():
            return run(served.module, *batch)

    @property
    def version(self) -> int:
        """Deltas that readers see."""
        return self.slots.version

    @property
    def collections(self) -> Mapping[str, TableBatchCollection]:
        """Dotted path -> served collection, of the slot that readers see."""
        return self.slots.contents[0].collections

    def train(self, mode: bool = True) -> "Served":
        """Stay in eval mode.

        Raises:
            NotSupported: training was asked for.
        """
        if mode:
            raise NotSupported("Served: inference only; train the model and convert it again")
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled.

        Raises:
            NotSupported: always: readers and writers of the copy would not wait for each other.
        """
        raise NotSupported(
            "Served: cannot be copied or pickled; save it and load it again, or convert once more"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder that ``load_served`` reads, whole or not at all.

        Folders that are missing above it are made.

        Raises:
            GraceError: ``path`` is something else, or cannot be written.
        """
        from grace_torchrec.serve.files import save_served

        save_served(self, path)
