"""What is written for TensorBoard is read back by TensorBoard, with the numbers of the plan."""

import io
import sys

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.views.plan_figure import MOST_TABLES, plan_figure
from grace_torchrec.views.tensorboard import Board, TableShares, planned_shares


@pytest.fixture(scope="module")
def made():
    """(plan with sums in two memories and a stock table, its profile)."""
    specs = [
        TableSpec("m", name, 900, 32, "fp32", "sum", (name,), False)
        for name in ("t_item", "t_rare")
    ]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("t_item",))})
    memory = MemoryModel.named("gh200", hbm_bytes=90_000)
    return make_plan(specs, profile, memory, PlanOptions(size_limits=(3,))), profile


def read_back(folder):
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    return events.Reload()


def last(events, tag):
    return events.Scalars(tag)[-1].value


def test_a_plan_is_read_back_with_its_numbers(made, tmp_path):
    plan, _ = made
    with Board(tmp_path) as board:
        board.plan(plan, step=7)
    events, table = read_back(tmp_path), plan.tables["m.t_item"]
    assert last(events, "grace/m.t_item/saved_reads") == pytest.approx(table.predicted.cut)
    host = table.placement.host.reads / (table.placement.host.reads + table.placement.hbm.reads)
    assert 0 < host < 1
    assert last(events, "grace/m.t_item/uvm_reads") == pytest.approx(host)
    assert last(events, "grace/m.t_item/hbm_reads") == pytest.approx(1 - host)
    assert last(events, "grace/m.t_rare/sum_hit") == 0
    assert events.Scalars("grace/m.t_item/sum_hit")[0].step == 7
    assert last(events, "grace/cut") == pytest.approx(summarise(plan).cut)
    assert not [tag for tag in events.Tags()["scalars"] if tag.endswith("/drift")]


def test_sums_hit_is_the_share_of_rows_that_rewriting_takes_from_the_sums(made):
    plan, profile = made
    table = plan.tables["m.t_item"]
    rows = rewrite(profile.tables["t_item"].trace, table.sums).rows
    everywhere = np.mean(rows >= table.sums.num_items)
    assert planned_shares(table).sum_hit == pytest.approx(everywhere, abs=0.05)


def test_options_are_hparams_beside_what_they_gave(made, tmp_path):
    plan, _ = made
    with Board(tmp_path) as board:
        board.plan(plan)
    content = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(data)
        for tag, data in read_back(tmp_path).PluginTagToContent("hparams").items()
    }
    given = content["_hparams_/session_start_info"].session_start_info.hparams
    assert given["budget"].number_value == 1.0
    assert given["rewriting"].string_value == "in_line"
    assert given["machine"].string_value == plan.memory.machine
    metrics = content["_hparams_/experiment"].experiment.metric_infos
    assert {metric.name.tag for metric in metrics} == {
        "grace/cut", "grace/time_ratio", "grace/extra_bytes"
    }  # fmt: skip


def test_the_figure_is_a_picture(made, tmp_path):
    with Board(tmp_path) as board:
        board.plan(made[0])
    (shown,) = read_back(tmp_path).Images("grace/plan")
    pixels = np.asarray(Image.open(io.BytesIO(shown.encoded_image_string)).convert("RGB"))
    assert pixels.shape[1] >= 600
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 4  # bars, not an empty page


def test_the_figure_shows_the_slower_tables_and_their_times(made):
    summary = summarise(made[0])
    (axes,) = plan_figure(summary).axes
    assert axes.get_yticklabels()[0].get_text() == "t_item"
    seconds = sum(bar.get_width() for bar in axes.patches) / 1e6
    parts = [part for table in summary.tables for part in table.tiers]
    assert seconds == pytest.approx(sum((p.time_s or 0) + (p.stock_s or 0) for p in parts))
    assert len(summary.tables) <= MOST_TABLES


def test_live_figures_have_the_tags_of_the_field(tmp_path):
    with Board(tmp_path) as board:
        for step in (1, 2):
            board.tables({"t_item": TableShares(0.3, 0.6, 0.4, 0.2, drift=0.01 * step)}, step)
            board.streams([0.5, 0.25], [3, 0], step)
            board.latency(1.0, 2.0, 3.0, step)
    events = read_back(tmp_path)
    assert sorted(events.Tags()["scalars"]) == sorted(
        [f"grace/t_item/{name}" for name in ("saved_reads", "hbm_reads", "uvm_reads", "sum_hit", "drift")]
        + [f"recos/stream_{i}/{name}" for i in (0, 1) for name in ("busy", "queue")]
        + [f"latency/{name}" for name in ("p50", "p95", "p99")]
    )  # fmt: skip
    assert [event.value for event in events.Scalars("grace/t_item/drift")] == pytest.approx(
        [0.01, 0.02]
    )
    assert last(events, "latency/p99") == 3


def test_a_schedule_says_how_busy_each_stream_is(tmp_path):
    ops = (Op("a", "aten", ()), Op("b", "aten", ()), Op("c", "aten", (0, 1)))
    schedule = Schedule(
        OpGraph("g", ops),
        Machine(2),
        (0, 1, 0),
        (0, 1, 2),
        ((), (), (1,)),
        (0, 0, 4),
        (4.0, 2.0, 4.0),
    )
    with Board(tmp_path) as board:
        board.schedule(schedule)
    events = read_back(tmp_path)
    assert last(events, "recos/stream_0/busy") == 1
    assert last(events, "recos/stream_1/busy") == 0.25
    assert last(events, "recos/stream_0/queue") == 2


def test_what_is_missing_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(GraceError, match="file: cannot be written"):
        Board(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(NotSupported, match=r"pip install 'grace-torchrec\[report\]'"):
        Board(tmp_path / "other")
    assert not (tmp_path / "other").exists()
