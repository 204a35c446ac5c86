"""The report: a plan as one HTML page that needs no network and no other file.

Flow: Plan (+ Profile) -> *one HTML file* -> a browser.  Style and script stand in the page, and its
security policy allows these two by their hash and nothing else.
"""

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path

import grace_torchrec
from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.make import check_profile_fits
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.summary import PlanSummary
from grace_torchrec.plans.what_if import WhatIf, what_if
from grace_torchrec.traces.profile import Profile
from grace_torchrec.views.claim_text import claimed_text, doubt_lines, host_lines, speed_text
from grace_torchrec.views.html import Html, element
from grace_torchrec.views.numbers import bytes_text, seconds_text
from grace_torchrec.views.report_parts import numbers, section
from grace_torchrec.views.report_sums import CutCurve, ReadSums, budget_section, sums_section
from grace_torchrec.views.report_tables import MEMORY, time_section, verdict_section
from grace_torchrec.views.report_what_if import what_if_section
from grace_torchrec.views.tables import Grid, short_names

SECTIONS = (
    ("time", "Time"), ("tables", "Tables"), ("budget", "Budget"), ("sums", "Sums"),
    ("whatif", "What if"), ("made", "Made from"),
)  # fmt: skip


def write_report(
    plan: Plan,
    path: str | os.PathLike[str],
    profile: Profile | None = None,
    source: str = "",
) -> Path:
    """Write the report of a plan.

    Args:
        plan: The plan.
        path: HTML file to write; a file that is there is replaced.
        profile: Bags over which rows are placed anew for other machines; None: that section
            changes the host bandwidth only.
        source: Where the plan is, for people.

    Returns:
        The file.

    Raises:
        PlanMismatch: the profile does not belong to the tables of the plan.
        GraceError: the profile holds no bags, or the file cannot be written.
    """
    if profile is not None:
        check_profile_fits(profile, [table.spec for table in plan.tables.values()])
        if not any(table.trace.num_bags for table in profile.tables.values()):
            raise GraceError("profile: holds no bags; give that of the plan, or leave it out")
    found = what_if(plan, profile) if profile is not None and plan.memory.hbm else None
    target = Path(path)
    try:
        artifact.write_file(target, report_page(plan, found, source).encode())
    except OSError as error:
        raise GraceError(f"{target}: cannot be written: {error.strerror}; give -o FILE") from error
    return target


def report_page(plan: Plan, found: WhatIf | None = None, source: str = "") -> str:
    """Return the page.

    Args:
        plan: The plan.
        found: Its rows on other machines.
        source: Where the plan is, for people.
    """
    summary = summarise(plan, source)
    style, script = (_file(name) for name in ("report.css", "report.js"))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=f"grace-torchrec {grace_torchrec.__version__}"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Plan for {summary.machine}: {_headline(summary)}"),
        element("style", Html(style)),
    )
    links = [element("li", element("a", text, href=f"#{name}")) for name, text in SECTIONS]
    body = element(
        "body",
        element("a", "Skip to the report", href="#main", class_="skip"),
        _top(summary),
        element("nav", element("div", element("ul", links), class_="wrap"), aria_label="Sections"),
        element(
            "main",
            time_section(summary),
            verdict_section(summary),
            budget_section(cut_curves(plan)),
            sums_section(read_sums(plan)),
            what_if_section(summary, found),
            _made(summary),
            id="main",
            class_="wrap",
        ),
        element(
            "footer",
            element(
                "div",
                f"grace-torchrec {grace_torchrec.__version__}. Times are modelled, not measured.",
                class_="wrap",
            ),
        ),
        element("script", Html(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def cut_curves(plan: Plan) -> list[CutCurve]:
    """Return what each table would save with fewer sums, the most read tables first."""
    names = short_names(list(plan.tables))
    return [CutCurve(names[t.spec.key], t.curve) for t in _most_read(plan) if t.curve]


def read_sums(plan: Plan) -> list[ReadSums]:
    """Return how often each sum is read, the most read tables first."""
    names = short_names(list(plan.tables))
    return [
        ReadSums(names[t.spec.key], t.sums, t.sum_reads_R)
        for t in _most_read(plan)
        if t.sums is not None and t.sums.num_sums and t.sum_reads_R.size
    ]


def _most_read(plan: Plan) -> list[TablePlan]:
    """Return the tables, those that held-out bags ask for most first."""
    return sorted(plan.tables.values(), key=lambda table: -table.predicted.ids)


def _headline(summary: PlanSummary) -> str:
    """Return the report in one line."""
    used = summary.verdicts().get("use", 0)
    if not used:
        return f"leave this model stock on {summary.machine}"
    return f"lookups on {summary.machine}: {speed_text(summary)}"


def _top(summary: PlanSummary) -> Html:
    """Return the headline and the figures that matter."""
    told = summary.verdicts_told() or "no tables"
    headline = _headline(summary)
    lines = [*doubt_lines(summary), *host_lines(summary)]
    return element(
        "header",
        element("p", f"grace-torchrec plan {summary.source}".rstrip(), class_="eyebrow"),
        element("h1", headline[:1].upper() + headline[1:]),
        [element("p", f"{line[:1].upper()}{line[1:]}.") for line in lines],
        element("dl", [_tile(*tile) for tile in _tiles(summary, told)], class_="tiles"),
        class_="top wrap",
    )


def _tiles(summary: PlanSummary, verdicts: str) -> list[tuple[str, str, str]]:
    """Return (what, figure, beside it) of each tile."""
    extra = sum(table.extra_bytes or 0 for table in summary.tables)
    tables = sum((t.num_rows or 0) * (t.row_bytes or 0) for t in summary.tables)
    more = (
        f"{extra / tables:.1%} on top of {bytes_text(tables)} of tables" if tables else "no tables"
    )
    slower = max(summary.tiers, key=lambda part: part.time_s or 0.0)
    return [
        (
            "Lookup time, modelled",
            seconds_text(summary.time_s or 0.0),
            f"stock {seconds_text(summary.stock_s or 0.0)}, held-out bags{claimed_text(summary)}",
        ),
        ("Row reads saved", f"{summary.cut:.1%}", "of all tables, held-out bags"),
        ("Extra memory", bytes_text(extra), more),
        ("Slower memory", MEMORY.get(slower.tier, slower.tier), "decides over the lookup time"),
        ("Tables", f"{len(summary.tables):,}", verdicts),
    ]


def _tile(what: str, figure: str, beside: str) -> Html:
    """Return one tile."""
    return element("div", element("dt", what), element("dd", figure), element("dd", beside))


def _made(summary: PlanSummary) -> Html:
    """Return what the plan was made for and from."""
    rows = [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}")
        for name, value in (("machine", summary.machine), *summary.settings.items())
    ]
    return section(
        "made",
        "Made from",
        element(
            "p",
            "Rows read and reads saved were counted by the op that serves; times are modelled from the "
            "bandwidths of the machine, not measured.",
        ),
        numbers(
            Grid("Settings", ("setting", "value"), rows, frozenset({"setting", "value"})),
            "Show machine and options",
        ),
    )


def _file(name: str) -> str:
    """Return the style sheet or the script."""
    return (
        resources.files("grace_torchrec.views").joinpath("page").joinpath(name).read_text("utf-8")
    )


def _hash(text: str) -> str:
    """Return the source expression that allows exactly this style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
