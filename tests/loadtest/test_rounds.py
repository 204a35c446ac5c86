"""A load test asks, clocks and checks: wrong answers, refusals and failures are seen and counted."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.loadtest.entrants import Models, engine_of, entrants
from grace_torchrec.loadtest.generator import Load
from grace_torchrec.loadtest.notes import notes_of
from grace_torchrec.loadtest.processes import Rig
from grace_torchrec.loadtest.rounds import Settings, load_test
from grace_torchrec.loadtest.subject import Subject, cut_rows, model_subject, recorded
from grace_torchrec.views.latency_figure import write_latency_figure
from grace_torchrec.views.serve_bench_text import serve_bench_lines


class Times(nn.Module):
    """Multiplies; answers of numbers below -0.9 fail."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < -0.9).any()):
            raise ValueError("too small")
        return x * self.factor


def subject_of(factor: float, low: float = -0.8, high: float = 0.9) -> Subject:
    numbers = np.linspace(low, high, 20, dtype=np.float32)
    requests = [(torch.tensor([[float(x)]]),) for x in numbers]
    answers = tuple(np.array([2 * x], np.float32) for x in numbers)
    return Subject("numbers", Times(2), Times(factor), tuple(requests), answers)


def test_every_entrant_and_count_has_its_figures_and_right_answers_are_no_errors() -> None:
    settings = Settings((1, 3), ("plain", "stock", "ours"), rounds=2, requests=60)
    found = load_test(subject_of(2), settings)
    assert found["errors"] == 0
    assert found["requests"] == 2 * 2 * 3 * 60
    for label in ("1", "3"):
        assert set(found["clients"][label]) == {"plain", "stock", "ours"}
        for cell in found["clients"][label].values():
            assert 0 < cell["p50"] <= cell["p95"] <= cell["p99"]
            assert cell["service_p50"] < cell["p50"]
            assert cell["throughput"] > 0
            assert (cell["rejected"], cell["answered"], cell["largest_difference"]) == (0, 60, 0)
    ratio = found["ratios"]["3"]["ours/stock"]["p99"]
    assert found["p99_ratio"] == ratio["median"]
    assert (ratio["low"], ratio["high"]) == (
        None,
        None,
    )  # two rounds miss the median in every second test
    lines = serve_bench_lines(found)
    assert any(line.split()[:2] == ["1", "client"] for line in lines)
    assert any("ours/stock" in line and "(n/a)" in line for line in lines)
    assert any("95 % interval: n/a, needs 6 rounds" in line for line in lines)
    assert lines[-2:] == [
        "note: p99 of a round is told from 60 answers, 0 of them slower; give --requests 1000 or more",
        "note: 2 rounds cannot give a 95 % interval; give --rounds 6 or more",
    ]


def test_wrong_answers_failures_and_refusals_are_counted_and_have_no_latency() -> None:
    subject = subject_of(3, low=-1.0)  # wrong unless 0; below -0.9 it fails
    with Rig(subject, 4, 1e-3, None) as rig:
        models = Models(subject, 1)
        for model, least in (("ours", 80), ("stock", 1)):
            entrant = entrants(8, 1, 1)[model]
            with engine_of(entrant, models, None) as engine:
                found = rig.measure(engine, Load(100, 0, 4))
            assert found.errors >= least
            assert (found.wrong > 0) == (model == "ours")
            assert found.failed > 0 == found.lost
            assert found.latency_s.size == 100 - found.errors
        closed = engine_of(entrants(8, 1, 1)["stock"], models, None)
        closed.close()
        found = rig.measure(closed, Load(20, 0, 2))
        assert (found.rejected, found.errors, found.latency_s.size) == (20, 0, 0)


def test_errors_of_the_warm_up_are_errors_and_the_span_begins_with_the_first_question() -> None:
    subject = subject_of(3)
    with Rig(subject, 2, 1e-3, None) as rig:
        models, known = Models(subject, 1), entrants(8, 1, 1)
        with engine_of(known["ours"], models, None) as engine:
            found = rig.measure(engine, Load(1, 30, 1))
        assert found.wrong > 20
        assert 0.2 < found.largest_difference <= 0.9
        with engine_of(known["stock"], models, None) as engine:
            found = rig.measure(engine, Load(1, 30, 1))
        assert found.errors == 0
        assert found.span_s == pytest.approx(found.latency_s[0])  # one request: it is the span


def test_what_weakens_the_figures_is_said_and_what_is_not_known_has_no_figure(tmp_path) -> None:
    settings = Settings((2,), ("ours",), rounds=1, requests=60)
    found = load_test(subject_of(3, low=0.1), settings)  # every answer is wrong
    json.dumps(found, allow_nan=False)
    assert found["clients"]["2"]["ours"]["p99"] is None
    assert sum(line.split()[1:4] == ["-", "-", "-"] for line in serve_bench_lines(found)) == 1
    write_latency_figure(found, tmp_path / "latency.svg")
    note = found["notes"][-1]
    assert note.startswith("ours, 2 clients: ")
    assert (
        "wrong; the figures are of the other requests; answers differ from stock by up to 0.9"
        in note
    )
    assert found["errors"] > found["clients"]["2"]["ours"]["errors"]  # those of the first round too
    slow = {**found, "pattern": "pulse", "rate": 1e9}
    assert "ours answered" in notes_of(slow)[-1]


def test_an_open_loop_asks_at_the_rate_and_counts_from_when_requests_were_due(tmp_path) -> None:
    settings = Settings(names=("stock",), rounds=1, requests=50, pattern="pulse", rate=2000.0)
    found = load_test(subject_of(2), settings)
    assert found["errors"] == 0
    assert list(found["clients"]) == ["pulse"]
    write_latency_figure(found, tmp_path / "latency.svg")
    assert (tmp_path / "latency.svg").stat().st_size > 1000


def test_unknown_entrants_and_missing_recorders_are_refused() -> None:
    with pytest.raises(GraceError, match="no entrant 'theirs'"):
        load_test(subject_of(2), Settings(names=("theirs",)))
    with pytest.raises(GraceError, match="needs a recorder"):
        load_test(subject_of(2), Settings(names=("ours_recorded",)))


def test_requests_are_the_rows_of_batches(collection_of, table_of, batch_of) -> None:
    bags = batch_of({"item": [[1, 2], [], [3]], "seen": [[4], [5, 5, 6], []]})
    batch = (torch.arange(6.0).reshape(3, 2), {"bags": bags})
    one = cut_rows(batch, 1, 2)
    assert one[0].tolist() == [[2, 3]]
    assert one[1]["bags"].values().tolist() == [5, 5, 6]
    assert one[1]["bags"].lengths().tolist() == [0, 3]
    model = nn.Sequential(collection_of([table_of("t", features=("item", "seen"))])).eval()
    subject = model_subject("small", model, [(bags,)], served=model)
    assert len(subject.requests) == 3
    together = model(bags).values().detach().numpy()
    assert np.array_equal(np.stack(subject.answers), together)


class Towers(nn.Module):
    """Two collections, each with its own bags; bags of a request come in a tuple and in a dict."""

    def __init__(self, user: nn.Module, item: nn.Module) -> None:
        super().__init__()
        self.user, self.item = user, item

    def forward(self, users: KeyedJaggedTensor, items: dict[str, KeyedJaggedTensor]) -> Tensor:
        return self.user(users).values() + self.item(items["bags"]).values()


@pytest.fixture
def towers(collection_of, table_of, batch_of) -> tuple[Towers, tuple[Any, ...]]:
    """A model of two towers and a batch of six rows with bags of different features and sizes."""
    user = collection_of([table_of("t_user", features=("history",))])
    item = collection_of([table_of("t_item", features=("tags",))])
    history = batch_of({"history": [[1, 2, 3], [], [4], [5, 5], [6, 7], [8]]})
    tags = batch_of({"tags": [[9], [8, 7], [6, 6, 6], [], [5], [4, 3]]})
    return Towers(user, item).eval(), (history, {"bags": tags})


def test_bags_in_several_keyed_jagged_tensors_are_cut_recorded_joined_and_answered(towers) -> None:
    model, batch = towers
    subject = model_subject("towers", model, [batch], served=model)
    with torch.no_grad():
        assert np.array_equal(np.stack(subject.answers), model(*batch).numpy())
    profile = recorded(model, [batch, batch])
    assert profile.tables["t_user"].trace.ids_L.tolist() == 2 * batch[0].values().tolist()
    assert profile.tables["t_item"].trace.ids_L.tolist() == 2 * batch[1]["bags"].values().tolist()
    engine = engine_of(entrants(8, 1, 1)["stock"], Models(subject, 1), None)
    with Rig(subject, 4, 1e-6, None) as rig, engine:
        found = rig.measure(engine, Load(40, 0, 4))
    assert (found.errors, found.rejected, found.latency_s.size) == (0, 0, 40)


def test_items_ranked_for_a_user_are_refused_with_what_to_do(towers, batch_of) -> None:
    model, (history, _) = towers
    items = {"bags": batch_of({"tags": [[1]] * 18})}  # three for each of six users
    with pytest.raises(GraceError, match=r"batch 0: .*6 rows.* 18; .*repeat a user's row for each"):
        model_subject("ranked", model, [(history, items)], served=model)
    with pytest.raises(NotSupported, match="batch 0 holds what cannot be cut by rows"):
        model_subject("odd", model, [(history, object())], served=model)


def test_what_cannot_be_joined_is_no_subject() -> None:
    model = Times(2)
    with pytest.raises(NotSupported, match="cannot be joined"):
        Subject.of("odd", model, model, [(torch.zeros(1, 1), object())])
    with pytest.raises(GraceError, match="no requests"):
        Subject.of("none", model, model, [])
