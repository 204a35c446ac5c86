"""The report in headless Chromium: two widths, both colour schemes, mouse and keyboard."""

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace
from grace_torchrec.views.report import write_report

PHONE, DESK = 360, 1280
LONG = "sparse_arch.a_name_that_nobody_would_call_short_but_somebody_has_all_the_same"
ENTER, TAB, RIGHT = ("Enter", 13), ("Tab", 9), ("ArrowRight", 39)

# contrast of every visible text against the paper behind it, after WCAG 2
CONTRAST = """
(() => {
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const paper = (node) => {
    for (; node; node = node.parentElement) {
      const c = parse(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const owner = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !owner.checkVisibility() || owner.closest("script")) continue;
    if (owner.closest("title")) continue;
    const style = getComputedStyle(owner);
    const ink = light(parse(owner.closest("svg") ? style.fill : style.color).slice(0, 3));
    const back = light(paper(owner));
    const ratio = (Math.max(ink, back) + .05) / (Math.min(ink, back) + .05);
    if (ratio < 4.5) bad.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return bad;
})()
"""
# elements that stick out of the window, other than inside regions that scroll
STICKS_OUT = """
[...document.querySelectorAll("main *, header *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest(".scroll, title, nav") && (box.right > innerWidth + 1 || box.left < -1);
}).map((e) => e.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report with sums, hot rows, a stock table, a long name and a grid of machines."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    specs = [
        TableSpec(module, name, rows, 32, "fp32", "sum", (name[2:],), False)
        for module, name, rows in (
            ("m", "t_item", 900), ("m", "t_user", 400), (LONG, "t_item", 700),
        )
    ]  # fmt: skip
    specs[2] = TableSpec(LONG, "t_" + "long_" * 12, 700, 32, "fp32", "sum", ("long",), False)
    single = Trace.from_bags([[b % 40] for b in range(900)], 400)
    profile = Profile(
        {
            "t_item": TableProfile(generate(900, 800, seed=3), ("item",)),
            "t_user": TableProfile(single, ("user",)),
            specs[2].name: TableProfile(generate(700, 800, seed=4), ("long",)),
        }
    )
    memory = MemoryModel.named("gh200", hbm_bytes=200_000)
    options = PlanOptions(size_limits=(3,), rewriting="ahead")
    plan = make_plan(specs, profile, memory, options)
    assert {table.verdict for table in plan.tables.values()} >= {"use"}
    return write_report(plan, path, profile)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_fits_is_readable_loads_nothing_and_complains_of_nothing(page, report, width, dark):
    page.open(report, width, dark)
    assert page.value("document.documentElement.scrollWidth") == width
    page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value(STICKS_OUT) == []
    assert page.value(CONTRAST) == []
    assert page.value("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    assert page.requests == [report.as_uri()]
    assert page.complaints == []
    paper = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_texts_of_charts_keep_a_size_that_is_read(page, report, width):
    page.open(report, width)
    sizes = page.value(
        "[...document.querySelectorAll('.chart text')].map((t) => t.getBoundingClientRect().height)"
    )
    assert all(size >= 9 for size in sizes)


def test_the_first_tab_leads_past_the_navigation_and_all_that_acts_is_reached(page, report):
    page.open(report, DESK)
    wanted = page.value(
        "[...document.querySelectorAll('a[href], button, summary, input, [tabindex]')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    reached = []
    for _ in range(wanted + 2):
        page.press(*TAB)
        reached.append(
            page.value("document.activeElement === document.body ? null : "
                       "[...document.querySelectorAll('*')].indexOf(document.activeElement)")
        )  # fmt: skip
    assert page.value("document.querySelector('.skip').getAttribute('href')") == "#main"
    assert len({place for place in reached if place is not None}) >= wanted
    assert reached[0] == page.value(
        "[...document.querySelectorAll('*')].indexOf(document.querySelector('.skip'))"
    )


def test_what_has_the_focus_is_seen(page, report):
    page.open(report, DESK)
    for _ in range(4):
        page.press(*TAB)
        outline = page.value("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_arrow_keys_walk_over_the_machines(page, report):
    page.open(report, PHONE)
    page.value("document.getElementById('size').focus()")
    page.value("document.getElementById('size').value = 0")
    before = page.value("document.getElementById('answer').textContent")
    texts = [before]
    for _ in range(4):
        page.press(*RIGHT)
        texts.append(page.value("document.getElementById('answer').textContent"))
        here = page.value("document.querySelector('td.here').dataset.cell")
        assert int(here.split(",")[0]) == page.value(
            "Number(document.getElementById('size').value)"
        )
    assert len(set(texts)) > 1
    assert "times the speed of stock" in texts[-1]
    label = page.value("document.getElementById('size').getAttribute('aria-valuetext')")
    assert label == page.value("document.getElementById('size-text').textContent")


def test_the_answer_of_the_own_machine_is_that_of_its_cell(page, report):
    page.open(report, DESK)
    said = page.value("document.getElementById('answer').textContent")
    cell = page.value("document.querySelector('td.here').textContent")
    assert said.startswith(cell.removesuffix("x") + " times")


def test_headings_sort_and_verdicts_filter(page, report):
    page.open(report, DESK)
    column = "[...document.querySelectorAll('#verdicts tbody tr')].map((r) => Number(r.cells[2].dataset.value))"
    page.value("document.querySelectorAll('#verdicts th button')[2].focus()")
    page.press(*ENTER)
    falling = page.value(column)
    assert falling == sorted(falling, reverse=True)
    page.press(*ENTER)
    assert page.value(column) == sorted(falling)
    assert page.value("document.querySelectorAll('#verdicts [aria-sort]').length") == 1
    shown = "[...document.querySelectorAll('#verdicts tbody tr')].filter((r) => r.checkVisibility()).map((r) => r.dataset.verdict)"
    for button in range(1, page.value("document.querySelectorAll('[data-show]').length")):
        page.value(f"document.querySelectorAll('[data-show]')[{button}].click()")
        wanted = page.value(f"document.querySelectorAll('[data-show]')[{button}].dataset.show")
        assert set(page.value(shown)) == {wanted}


def test_without_script_everything_is_there_but_the_sliders(page, report):
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(report, PHONE)
    assert page.value("document.getElementById('size').checkVisibility()") is False
    assert page.value("document.querySelectorAll('#verdicts tbody tr').length") == 3
    assert page.value("document.querySelectorAll('.heat td').length") > 20


def test_a_picture_of_it_is_no_empty_paper(page, report, tmp_path):
    page.open(report, DESK)
    page.picture(tmp_path / "report.png")
    data = np.frombuffer((tmp_path / "report.png").read_bytes(), np.uint8)
    assert data.size > 50_000
