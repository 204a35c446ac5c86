"""The report says what the plan says, alone in one file, and no name in it can become markup."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.curve import CurvePoint
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.what_if import what_if
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.views.numbers import seconds_text
from grace_torchrec.views.report import report_page, write_report
from grace_torchrec.views.report_sums import CutCurve, ReadSums, budget_section, sums_section
from grace_torchrec.views.report_what_if import what_if_section

HOSTILE = 't_<script>alert("1")</script>&\'"'


class Reader(HTMLParser):
    """Elements, attributes and visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.values, self.text, self._open = [], [], "", []
        self.feed(text)
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.values += [value for _, value in attrs if value]
        if tag not in ("meta", "input", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self._open):
            self.text += data


@pytest.fixture(scope="module")
def made():
    """(plan with sums and a stock table, its profile)."""
    specs = [
        TableSpec("m", name, 900, 32, "fp32", "sum", (name,), False) for name in ("t_item", HOSTILE)
    ]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("t_item",))})
    memory = MemoryModel.named("gh200", hbm_bytes=90_000)
    return make_plan(specs, profile, memory, PlanOptions(size_limits=(3,))), profile


def test_the_page_shows_what_the_plan_says(made):
    summary = summarise(made[0])
    page = Reader(report_page(made[0], source="where it is"))
    for part in summary.tiers:
        assert seconds_text(part.time_s) in page.text
    for table in summary.tables:
        assert table.reason in page.text
        assert table.verdict in page.text
    assert "where it is" in page.text
    assert "--profile" in page.text  # what it cannot say without the bags


def test_the_page_stands_alone(made):
    text = report_page(made[0])
    page = Reader(text)
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert not any(word in text for word in ("http://", "https://", "url(", "@import", "src="))
    assert not any("//" in value for value in page.values)
    assert "default-src 'none'" in " ".join(page.values)
    assert page.tags.count("script") == 2  # the numbers of the sliders, and the script


def test_a_hostile_name_stays_a_name(made):
    page = Reader(report_page(made[0], source=HOSTILE))
    assert HOSTILE in page.text
    assert page.tags.count("script") == 2


def test_every_chart_says_in_words_what_it_shows(made):
    text = report_page(made[0])
    svgs = text.split("<svg")[1:]
    assert svgs
    assert all('role="img" aria-label="' in svg or 'aria-hidden="true"' in svg for svg in svgs)


def test_with_the_profile_rows_move_and_the_own_machine_is_marked(made, tmp_path):
    plan, profile = made
    write_report(plan, tmp_path / "r.html", profile)
    text = (tmp_path / "r.html").read_text()
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert len(data["sizes"]) == len(data["cells"]) >= 6
    assert all(len(row) == len(data["betas"]) for row in data["cells"])
    assert text.count('class="here"') == 1
    assert "the bags that the plan was made from" in text


def test_sizes_with_which_the_rows_do_not_fit_are_named(made):
    found = what_if(*made)
    assert "Left out" not in str(what_if_section(summarise(made[0]), found))
    told = str(what_if_section(summarise(made[0]), replace(found, left_out=(0, 2048))))
    assert "do not fit the memories then: HBM of 0 B, 2.0 KiB." in told


def test_without_the_profile_only_the_time_of_host_memory_follows_beta(made):
    plan, _ = made
    summary = summarise(plan)
    hbm, host = summary.tiers
    rooms = dict(reversed(list(summary.rooms.items())))  # memories in another order
    for each in (summary, replace(summary, rooms=rooms)):
        text = str(what_if_section(each, None))
        data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
        assert {cell[0] for cell in data["cells"][0]} == {hbm.time_s}
        assert host.time_s in [cell[1] for cell in data["cells"][0]]
    assert hbm.time_s != host.time_s


def test_bags_of_another_table_are_refused_and_nothing_is_written(made, tmp_path):
    other = Profile({"t_other": TableProfile(generate(900, 800), ("f",))})
    with pytest.raises(PlanMismatch, match="t_other"):
        write_report(made[0], tmp_path / "r.html", other)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(made, tmp_path):
    with pytest.raises(GraceError, match="cannot be written"):
        write_report(made[0], tmp_path / "no such folder" / "r.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(GraceError, match="give -o FILE"):
        write_report(made[0], tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_one_memory_and_no_tables_make_a_report_too(made):
    plan = made[0]
    page = Reader(report_page(Plan({}, MemoryModel.named("cpu"))))
    assert "has one memory; nothing can move" in page.text
    assert "Leave this model stock on cpu" in page.text
    empty = Plan({}, replace(plan.memory, tiers=(Tier("hbm", 0, 1e9), Tier("host", 0, 1e8))))
    assert "No table could store sums." in Reader(report_page(empty)).text


def test_curves_and_sums_are_told_in_numbers_too():
    shown = Reader(
        budget_section([CutCurve("t", [CurvePoint(10, 0.1, 0.2), CurvePoint(20, 0.125, 0.25)])])
    )
    assert "Up to 20 sums save 25.0% ahead, 12.5% in line." in shown.text
    sums = StoredSums.from_clusters(9, np.array([0, 3, 5]), np.array([3, 7, 1, 2, 8]))
    reads = ReadSums("t", sums, np.array([2, 0, 90, 3, 5]))
    shown = Reader(sums_section([reads]))
    assert "2 of 5 sums (40.0%) take 95% of the reads of sums." in shown.text
    assert "7 + 1" in shown.text


def test_a_model_of_a_thousand_tables_draws_some_and_lists_all(made):
    plan = made[0]
    table = plan.tables["m.t_item"]
    many = {f"m.t{n}": replace(table, spec=replace(table.spec, name=f"t{n}")) for n in range(1000)}
    memory = MemoryModel.named("gh200")
    page = Reader(report_page(Plan(many, memory)))
    assert sum(f"t{n}" in page.text for n in range(1000)) == 1000
    assert page.tags.count("svg") < 100
