"""Subject: what a load test serves: a stock model, its converted form, and requests with answers.

Flow: a trace, or a model with example batches -> *Subject* -> entrants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec import api
from grace_torchrec.containers import remade
from grace_torchrec.demo.batches import history_batches
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.loadtest.encoding import flat_answer
from grace_torchrec.models.dlrm import history_dlrm
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

Request = tuple[Any, ...]
ALL = 1 << 40  # bags and ids of a profile: of batches that have an end, no sample is taken


@dataclass(frozen=True, eq=False)
class Subject:
    """What is served, and what is asked of it.

    Attributes:
        name: For the result.
        stock: The stock model, in eval mode.
        served: What stands against it.
        requests: Requests, all of one kind.
        answers: What the stock model answers to each alone, as flat numbers.
    """

    name: str
    stock: nn.Module
    served: nn.Module
    requests: tuple[Request, ...]
    answers: tuple[npt.NDArray[np.float32], ...]

    @classmethod
    def of(
        cls, name: str, stock: nn.Module, served: nn.Module, requests: Sequence[Request]
    ) -> "Subject":
        """Answer every request by the stock model; refuse what cannot be asked.

        Raises:
            GraceError: there are no requests, or of several kinds.
            NotSupported: rows of requests cannot be told, so they cannot be joined.
        """
        forms = [form_of(request) for request in requests]
        if not requests:
            raise GraceError(
                "load test: no requests; give batches that are not empty, or fewer rows a request"
            )
        if any(form.is_alone for form in forms):
            raise NotSupported("load test: requests hold what cannot be joined row by row")
        kinds = {form.kind for form in forms}
        if len(kinds) > 1:
            raise GraceError(f"load test: requests are of {len(kinds)} kinds; give one kind")
        with torch.no_grad():
            answers = tuple(flat_answer(stock(*request)) for request in requests)
        return cls(name, stock, served, tuple(requests), answers)


def history_subject(
    trace: Trace,
    name: str,
    *,
    rows: int = 1,
    dim: int = 128,
    size: str = "embedding_heavy",
    distinct: int = 1000,
    streams: int | None = None,
) -> Subject:
    """Return a DLRM over histories, planned and converted, and requests of users it has not seen.

    Args:
        trace: Bags of the feature ``history``.
        name: Of the trace.
        rows: Rows of a request.
        dim: Embedding dimension.
        size: A key of ``models.dlrm.SIZES``.
        distinct: Distinct requests at most.
        streams: Streams at most of one query; None: as convert has it.
    """
    torch.manual_seed(0)
    split = split_bags(trace)
    stock = history_dlrm(trace.num_items, dim, size).eval()
    train = [batch.inputs for batch in history_batches(split.train)]
    batches = history_batches(split.test, rows)
    requests = [batch.inputs for batch, _ in zip(batches, range(distinct), strict=False)]
    return Subject.of(name, stock, converted(stock, train, streams), requests)


def model_subject(
    name: str,
    stock: nn.Module,
    batches: Sequence[Request],
    *,
    served: nn.Module | None = None,
    rows: int = 1,
    distinct: int = 1000,
    streams: int | None = None,
) -> Subject:
    """Return a model with requests cut from its example batches.

    Args:
        name: Of the model.
        stock: In eval mode.
        batches: Positional arguments of each batch; the profile is made from them, too.
        served: The converted model; default: it is planned and converted here.
        rows: Rows of a request.
        distinct: Distinct requests at most.
        streams: Streams at most of one query; None: as convert has it.

    Raises:
        GraceError: arguments of a batch differ in rows.
        NotSupported: batches cannot be cut by rows, or the model has nothing to convert.
    """
    requests: list[Request] = []
    for number, batch in enumerate(batches):
        count = _rows_of(batch, f"load test: batch {number}")
        starts = range(0, count - rows + 1, rows)
        requests += [cut_rows(batch, first, first + rows) for first in starts]
    chosen = requests[:distinct]
    found = converted(stock, batches, streams) if served is None else served
    return Subject.of(name, stock, found, chosen)


def converted(stock: nn.Module, batches: Sequence[Request], streams: int | None) -> nn.Module:
    """Profile, plan and convert a model for this machine; rows keep their type.

    Args:
        stock: In eval mode.
        batches: What the profile is made from.
        streams: Streams at most of one query; None: as convert has it.
    """
    profile = recorded(stock, batches)
    plan = api.plan(stock, profile, MemoryModel.named("cpu"))
    return convert(stock, plan, example=batches[0], streams=streams, row_dtype="table")


def recorded(stock: nn.Module, batches: Sequence[Request]) -> Profile:
    """Return the bags that the collections of a model see, however batches hold them.

    Bags may be in several KeyedJaggedTensors, and those in dicts, lists and tuples.

    Args:
        stock: In eval mode.
        batches: All are run and looked at.

    Raises:
        GraceError: the model refuses a batch.
    """
    recorder = TraceRecorder(
        stock, max_bags=ALL, max_ids=ALL, max_bag_ids=ALL, max_overhead=None, min_support=1
    )
    recorder.attach()
    try:
        with torch.no_grad():
            for number, batch in enumerate(batches):
                _run(stock, batch, f"load test: the model refuses batch {number}")
    finally:
        recorder.detach()
    return recorder.profile()


def _run(stock: nn.Module, batch: Request, where: str) -> None:
    """Run a batch; where the model fails, say what is wrong with its bags, or else what it said.

    Raises:
        GraceError: it does.
    """
    try:
        stock(*batch)
    except Exception as error:  # whatever the model's own code raises
        api.profile([batch], stock)  # refuses batches without bags, and ids outside their tables
        raise GraceError(f"{where}: {type(error).__name__}: {error}") from error


def _rows_of(batch: Request, where: str) -> int:
    """Return the rows of a batch that can be cut into requests.

    Raises:
        GraceError: its arguments differ in rows.
        NotSupported: it holds what has no rows.
    """
    try:
        form = form_of(batch)
    except GraceError as error:
        raise GraceError(
            f"{where}: {error}; requests are cut and joined by row, so repeat a user's row for each "
            "of its items"
        ) from error
    if form.is_alone:
        raise NotSupported(
            f"{where} holds what cannot be cut by rows; give tensors with a row for each row of the "
            "batch, KeyedJaggedTensors of one stride, numbers and texts"
        )
    return form.rows


def cut_rows(batch: Request, first: int, last: int) -> Request:
    """Return the rows ``first`` to ``last`` of a request.

    Args:
        batch: Tensors and bags, in tuples, lists and dicts.
        first: First row.
        last: Behind the last row.
    """
    return tuple(_cut(part, first, last) for part in batch)


def _cut(value: Any, first: int, last: int) -> Any:
    """Cut one argument."""
    if isinstance(value, Tensor):
        return value[first:last].clone()
    if isinstance(value, KeyedJaggedTensor):
        stride, ends = value.stride(), value.offsets().tolist()
        spans = [
            (ends[key * stride + first], ends[key * stride + last])
            for key in range(len(value.keys()))
        ]
        lengths = value.lengths().reshape(len(value.keys()), stride)[:, first:last].reshape(-1)
        parts = [value.values(), value.weights_or_none()]
        ids, weights = (
            None if part is None else torch.cat([part[a:b] for a, b in spans]) for part in parts
        )
        return KeyedJaggedTensor(value.keys(), ids, weights, lengths.clone())
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return remade(value, [_cut(part, first, last) for part in inner])
    return value
