"""One rule for what every command writes, held for each option of each command that names a place."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from bench.scheduling.costs import load_costs
from grace_sharding.memory_files import save_memory
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec import artifact
from grace_torchrec.cli import places
from grace_torchrec.cli.main import SUB_COMMANDS, cli
from grace_torchrec.cli.places import InPath, OutPath
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import CostFile, OpStats
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.traces.profile import Profile
from grace_torchrec.views.chrome_trace import chrome_trace
from grace_torchrec.views.gantt import gantt
from grace_torchrec.views.latency_figure import TYPES, write_latency_figure
from grace_torchrec.views.report import write_report

NEEDS = {  # what a command cannot be called without, beside the place that is tried
    "profile": ["no-trace", "-o", "fresh"],
    "plan": ["m:f", "--profile", "none", "--memory", "a100"],
    "convert": ["m:f", "no-plan", "-o", "fresh"],
    "report": ["no-plan"],
    "schedule": ["m:f"],
}


def plan_of_stock() -> Plan:
    spec = TableSpec("m", "t_item", 90, 32, "fp32", "sum", ("t_item",), False)
    return make_plan([spec], Profile({}), MemoryModel.named("a40"))


def folder(name: str) -> Callable[[Path], None]:
    return lambda place: artifact.write_folder(place, name, {}, {})


def board(place: Path) -> None:
    place.mkdir()
    (place / "events.out.tfevents.1").write_text("")


def costs(place: Path) -> None:
    graph = OpGraph.from_json({"name": "none", "ops": []})
    CostFile(graph, OpStats.of(graph, [], "test", "cpu")).save(place)


def drawn(draw: Callable[[Schedule], str]) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        known = load_costs("din")
        place.write_text(draw(make_schedule(known.graph, known.stats, Machine(4))))

    return write


def picture(place: Path, kind: str = ".png") -> None:
    cell = {"p50": 1.0, "p99": 2.0, "spread": {"p50": (1.0, 1.0), "p99": (1.0, 3.0)}}
    found = {"clients": {"1": {"ours": cell}}, "pattern": None, "subject": "din", "rounds": 1}
    write_latency_figure(found, place.with_suffix(kind))
    place.with_suffix(kind).rename(place)


OURS: dict[str, Callable[[Path], object]] = {  # the writer of each kind
    "profile folder": Profile({}).save,
    "plan folder": lambda place: plan_of_stock().save(place),
    "served folder": folder("served"),
    "demo folder": folder("demo"),
    "TensorBoard folder": board,
    "report": lambda place: write_report(plan_of_stock(), place),
    "memory model": lambda place: save_memory(MemoryModel.named("a40"), place),
    "cost file": costs,
    "trace for Perfetto": drawn(lambda schedule: json.dumps(chrome_trace(schedule))),
    "drawing in SVG": drawn(gantt),
    "picture": picture,
    "file of names": lambda place: place.write_text("milk\nbread\n"),
}
LIKE_OURS = {  # files of others that begin like a kind of ours
    "report": "<!doctype html>\n<html><head><title>Thesis</title></head></html>",
    "memory model": '{\n  "schema": 1,\n  "machine": "mine"\n}',
    "cost file": '{\n "format": 1,\n "mine": 1\n}',
    "picture": '<?xml version="1.0"?>\n<project><name>pom</name></project>',
}


def commands() -> dict[str, click.Command]:
    context = cli.make_context("grace-torchrec", ["doctor"])
    return {name: cli.get_command(context, name) for name in SUB_COMMANDS}


COMMANDS = commands()
WRITES = [
    pytest.param(name, param, id=f"{name} {param.opts[0]}")
    for name, command in COMMANDS.items()
    for param in command.params
    if isinstance(param.type, OutPath)
]
REPLACES = [case for case in WRITES if case.values[1].type.kind.replaces]
KEEPS = [case for case in WRITES if case not in REPLACES]
NOT_NAMED = [case for case in WRITES if isinstance(case.values[1].default, os.PathLike)]


def called(name: str, param: click.Parameter | None, place: object, *more: str) -> click.Context:
    """Read the arguments of a call, and do nothing."""
    needs = NEEDS.get(name, [])
    if param is not None and param.opts[0] in needs:
        needs = needs[:-2]
    given = [] if param is None else [param.opts[-1], str(place)]
    return COMMANDS[name].make_context(name, [*needs, *given, *more])


def refused(name: str, param: click.Parameter | None, place: object, *more: str) -> str:
    """Say why a call is refused."""
    with pytest.raises(click.UsageError) as error:
        called(name, param, place, *more)
    assert error.value.exit_code == 2
    return error.value.format_message()


def write_ours(kind: places.Kind, place: Path) -> None:
    OURS[kind.name](place)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_every_path_of_every_command_follows_the_rule():
    found = {
        (name, param.name)
        for name, command in COMMANDS.items()
        for param in command.params
        if isinstance(param.type, click.Path) and not isinstance(param.type, InPath | OutPath)
    }
    assert found == set()
    assert {case.values[1].type.kind.name for case in WRITES} == OURS.keys()


def test_the_result_of_a_command_is_named_alike_everywhere():
    names = {
        tuple(p.opts) for command in COMMANDS.values() for p in command.params if p.name == "out"
    }
    assert names == {("-o", "--out")}
    for case in WRITES:  # other places are files beside the result, named by what they hold
        name, param = case.values
        assert param.name == "out" or not param.required, name


@pytest.mark.parametrize(("name", "param"), WRITES)
def test_a_result_of_the_same_kind_that_was_named_is_replaced(here, name, param):
    assert called(name, param, "new").params[param.name].name == "new"
    write_ours(param.type.kind, here / "old")
    assert called(name, param, "old").params[param.name].name == "old"


@pytest.mark.parametrize(("name", "param"), REPLACES)
def test_what_is_of_another_kind_is_never_replaced(here, name, param):
    kind = param.type.kind
    (here / "thesis").write_text("mine")
    (here / "folder").mkdir()
    (here / "folder" / "thesis").write_text("mine")
    write_ours(kind, here / "old")
    (here / "link").symlink_to("old")
    os.mkfifo(here / "pipe")
    for place in ("thesis", "folder", "pipe", os.devnull):
        assert f"exists and is not a {kind.name}" in refused(name, param, place)
    assert f"is a link: name the {kind.name} itself" in refused(name, param, "link")


@pytest.mark.parametrize(("name", "param"), REPLACES)
def test_a_file_that_only_begins_like_ours_stays(here, name, param):
    kind = param.type.kind
    (here / "mine").write_text(LIKE_OURS.get(kind.name, "mine"))
    (here / "sound").write_bytes(b"RIFF\x24\0\0\0WAVEfmt ")
    for place in ("mine", "sound"):
        assert f"exists and is not a {kind.name}" in refused(name, param, place)


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_picture_that_is_written_is_replaced(here, kind):
    picture(here / "old", kind=f".{kind}")
    assert places.PICTURE.in_the_way(here / "old") is None


@pytest.mark.parametrize(
    ("name", "param"), [case for case in REPLACES if not case.values[1].type.kind.is_file]
)
def test_a_file_that_somebody_put_into_a_folder_of_ours_stays(here, name, param):
    write_ours(param.type.kind, here / "old")
    (here / "old" / "thesis").write_text("mine")
    assert "holds 'thesis', which is not of a" in refused(name, param, "old")


@pytest.mark.parametrize(("name", "param"), KEEPS)
def test_what_is_added_to_or_read_is_a_folder_or_a_file(here, name, param):
    if param.type.kind.is_file:
        (here / "place").mkdir()
    else:
        (here / "place").write_text("mine")
    assert "exists and is not a" in refused(name, param, "place")


@pytest.mark.parametrize(("name", "param"), NOT_NAMED)
def test_what_was_not_named_is_never_replaced(here, name, param):
    assert called(name, None, None).params["out"] == param.default
    write_ours(param.type.kind, here / param.default)
    assert f"give -o {param.default} to replace" in refused(name, None, None)
    assert called(name, param, param.default).params["out"] == param.default


@pytest.mark.parametrize(("name", "param"), WRITES)
def test_a_place_that_cannot_be_is_seen_before_the_work(here, name, param):
    (here / "file").write_text("mine")
    assert "is no folder" in refused(name, param, here / "file" / "out")
    (here / "link").symlink_to("nowhere")
    assert "is no folder" in refused(name, param, here / "link" / "out")
    if param.type.kind.is_file:
        assert "is no folder" in refused(name, param, here / "a" / "b")
    else:  # folders are made
        called(name, param, here / "a" / "b")
    if os.getuid():  # everything is writable for root
        (here / "shut").mkdir(mode=0o500)
        assert "is not writable" in refused(name, param, here / "shut" / "out")


@pytest.mark.parametrize(
    "kind", ["profile folder", "plan folder", "report", "memory model", "cost file"]
)
def test_python_makes_the_folders_that_the_command_line_makes(here, kind):
    """Above a folder that is saved, none above a file."""
    (is_file,) = {
        c.values[1].type.kind.is_file for c in WRITES if c.values[1].type.kind.name == kind
    }
    if is_file:
        with pytest.raises(ValueError, match=r"b: cannot be written.*No such file or directory"):
            OURS[kind](here / "a" / "b")
    else:
        OURS[kind](here / "a" / "b")
    assert (here / "a").exists() != is_file


@pytest.mark.parametrize(
    "call",
    [
        "profile bags -o bags",
        "profile bags -o P --remap bags",
        "profile bags -o P --remap ./P",
        "report plan -o plan",
        "report plan -o B --tensorboard B",
        "plan m:f --profile P --memory a40 -o P",
        "convert m:f plan -o plan",
        "schedule dlrm --svg a --trace a",
        "schedule dlrm --stats costs --save-stats costs",
        "schedule dlrm --save-stats costs --stats {}/costs",
        "serve-bench --trace bags --figure bags",
        "demo --trace bags -o bags",
    ],
)
def test_no_place_is_both_read_and_written(here, call):
    name, *arguments = call.format(here).split()
    with pytest.raises(click.UsageError, match=r"is also .*: give another place"):
        COMMANDS[name].make_context(name, arguments)


@pytest.mark.parametrize(
    "call",
    [
        "convert m:f ser/plan -o ser",
        "convert m:f ser -o ser/new",
        "report P -o P/report.html",
        "report P/plan -o R --tensorboard P",
        "profile bags -o P --remap P/names",
        "profile {}/bags/day -o bags",
    ],
)
def test_no_place_is_inside_of_one_that_is_read_or_written(here, call):
    (here / "P").mkdir()
    name, *arguments = call.format(here).split()
    with pytest.raises(click.UsageError, match=r"(is inside of|holds) .*: give another place"):
        COMMANDS[name].make_context(name, arguments)


def test_what_is_only_read_may_be_inside_of_another(here):
    called("plan", None, None, "--profile", "none/other", "-o", "new")
    called("report", None, None, "--profile", "no-plan/profile")
