"""Figures: each stands near the command that makes it, and pages that tell the same figure agree.

What a machine can see: a section with a figure (a number with a unit, a cut, a count in thousands)
names a command, a file of this project that holds the number, or a page that does; the title and
the sections around it count.  That the command makes this very figure is for people to check.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"papers", "placement_cells"}  # whole pages are what a command writes
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in GENERATED),
]
UNIT = r"(?:ns|us|ms|s|seconds?|minutes?|%|x|times|[KMG]i?B|bytes|GB/s)"
FIGURE = re.compile(
    rf"(?<![\w.])\d[\d,.]*\s?{UNIT}(?!\w)"  # 1.27x, 40 %, 512 bytes
    r"|(?<![\w.])0?\.\d{2,4}\b"  # .191
    r"|\b\d{1,3}(?:,\d{3})+\b"  # 120,000
)
COMMAND = re.compile(
    r"python -m bench \w|python (?:bench|examples)/|grace-torchrec [a-z]|make [a-z]|pytest |serve-bench"
)
# Sections whose figures are made by the command of another section of the page, which they continue.
SAME_RUN = {
    ("performance", "What was tried"): "One lookup, in nanoseconds",
}


@dataclass
class Section:
    """What stands under one title.

    Attributes:
        title: Its text.
        level: 1 for that of the page; 0 before any.
        prose: Text of paragraphs, lists and tables, without what is set as code.
        code: What is set as code, the title's too, and targets of links.
    """

    title: str = ""
    level: int = 0
    prose: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[str]:
        """Figures that stand in the prose."""
        return [found.group() for text in self.prose for found in FIGURE.finditer(text)]

    def is_sourced(self, page: Path) -> bool:
        """Tell whether a command, a file of this project or a page with commands is named."""
        return any(COMMAND.search(text) or names_a_file(text, page) for text in self.code)


def names_a_file(text: str, page: Path) -> bool:
    """Tell whether code, or a link, names Python of this project or another page of the docs."""
    if re.fullmatch(r"[\w/.]+\.py", text):
        return any(ROOT.glob(f"*/**/{text}")) or (ROOT / text).is_file()
    name = text.partition("#")[0]
    return name.endswith(".md") and (page.parent / name).is_file()


def sections_of(page: Path, text: str) -> Iterator[tuple[Section, list[Section]]]:
    """Yield each section of a page with those around it, the nearest last."""
    tokens = iter(MarkdownIt("commonmark").enable("table").parse(text))
    done, around = [Section()], []
    for token in tokens:
        if token.type == "heading_open":
            done.append(Section(level=int(token.tag[1])))
            words = next(tokens)
            done[-1].title = words.content
            add(words, done[-1])
            done[-1].prose.clear()  # a title tells no figure
        elif token.type in ("fence", "code_block"):
            done[-1].code.append(token.content)
        elif token.type == "inline":
            add(token, done[-1])
    for section in done:
        around = [other for other in around if other.level < section.level]
        yield section, list(around)
        around.append(section)


def add(token: Token, section: Section) -> None:
    """Add the words and the code of one token."""
    prose = ""
    for part in token.children or []:
        if part.type == "code_inline":
            section.code.append(part.content)
        if part.type == "link_open":
            section.code.append(str(part.attrs["href"]))
        prose += part.content if part.type == "text" else " "
    section.prose.append(prose)


def bare_figures(page: Path, text: str) -> dict[str, list[str]]:
    """Return title -> figures of the sections of a page that name no source.

    The sections around one count, but for the head of the page: it is too far away.
    """
    return {
        section.title: section.figures
        for section, around in sections_of(page, text)
        if section.figures
        and not any(each.is_sourced(page) for each in (section, *around) if each.level > 1)
        and not (section.level <= 1 and section.is_sourced(page))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_figure_stands_near_what_makes_it(page):
    found = bare_figures(page, page.read_text("utf-8"))
    unknown = {t: told for t, told in found.items() if (page.stem, t) not in SAME_RUN}
    assert unknown == {}, f"{page.name}: say by which command, or in which file"


def test_sections_that_continue_another_are_needed_and_the_other_has_the_command():
    for (stem, title), source in SAME_RUN.items():
        page = ROOT / "docs" / f"{stem}.md"
        text = page.read_text("utf-8")
        assert title in bare_figures(page, text), f"{title!r} needs no exception any more"
        (other,) = [s for s, _ in sections_of(page, text) if s.title == source]
        assert other.is_sourced(page)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("## A\n\nIt is 1.27x as fast.\n", ["1.27x"]),
        ("## A\n\nIt cuts .191 of 163,942 ids.\n", [".191", "163,942"]),
        ("## A\n\nIt is 1.27x as fast (`python -m bench lookup`).\n", []),
        ("## A\n\n    make demo\n\n### B\n\n| it takes |\n|---|\n| 3 s |\n", []),
        ("## A\n\n    make demo\n\n## B\n\nIt takes 3 s.\n", ["3 s"]),
        ("## A (`make demo`)\n\nIt takes 3 s.\n", []),
        ("## A\n\nRows take 512 bytes (`recorder.py`).\n", []),
        ("## A\n\nRows take 512 bytes (`nowhere.py`).\n", ["512 bytes"]),
        ("## A\n\nRows take 512 bytes ([there](placement.md)).\n", []),
        ("## A\n\nRows take `512 bytes` in 3 steps of section 3.5, torch 2.13.\n", []),
    ],
)  # fmt: skip
def test_a_figure_without_a_source_is_found(text, bare):
    page = ROOT / "docs" / "page.md"
    found = bare_figures(page, f"# Page\n\nAs `make demo` says.\n\n{text}")
    assert [figure for figures in found.values() for figure in figures] == bare


def tables(page: Path) -> list[list[str]]:
    """Cells of every row of every table of a page, without emphasis."""
    lines = page.read_text("utf-8").splitlines()
    return [
        [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
        for line in lines
        if line.lstrip().startswith("|")
    ]


def placement_cells() -> dict[tuple[str, str], dict[str, list[str]]]:
    """(capacity, beta) -> tables -> the other columns of ``placement_cells.md``."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    rows: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "placement_cells.md").read_text("utf-8").splitlines():
        if title := re.match(r"## Capacity ([\d.]+), beta ([\d.]+)", line):
            rows = found[title[1], title[2]] = {}
        elif line.startswith("| ") and "---" not in line and "tables" not in line:
            name, *cells = [cell.strip() for cell in line.strip("| ").split("|")]
            rows[name] = cells
    return found


def test_placement_tells_what_its_cells_tell():
    cells = placement_cells()["1", "0.1"]
    rows = [row for row in tables(ROOT / "docs" / "placement.md") if len(row) == 15]
    # communities and MERCI are on this page alone, and may be the best rival
    told = {row[0]: [*row[2:6], *row[8:11], row[13]] for row in rows if row[0] in cells}
    assert told == {trace: [*cells[trace][:7], cells[trace][8]] for trace in told}
    assert len(told) == 10
    for row in rows:
        if row[0] in told:
            more = [float(row[9]) / float(cell) for cell in row[6:8] if cell != "-"]
            ratio = min([float(cells[row[0]][7]), *more])
            assert float(row[11]) == pytest.approx(ratio, abs=0.011)


def test_means_of_placement_are_those_of_its_cells():
    cells, page = placement_cells(), tables(ROOT / "docs" / "placement.md")
    betas = ("0.013", "0.036", "0.1", "0.294", "1")
    rows = {row[0]: row[1:] for row in page if len(row) == 6 and (row[0], "1") in cells}
    assert set(rows) == {capacity for capacity, _ in cells}
    for capacity, told in rows.items():
        for beta, cell in zip(betas, told, strict=True):
            of_one = {
                trace: float(row[7])
                for trace, row in cells[capacity, beta].items()
                if not trace.startswith("the first")
            }
            mean = sum(of_one.values()) / len(of_one)
            assert float(cell.split()[0]) == pytest.approx(mean, abs=0.011)  # of rounded cells
            below = {trace: float(ratio) for trace, ratio in re.findall(r"(\w+) (0\.\d+)", cell)}
            assert all(of_one[trace] == ratio for trace, ratio in below.items())
            assert all(trace in below for trace, ratio in of_one.items() if ratio < 0.98)


def test_the_readme_cuts_are_those_of_grouping():
    rows = [row for row in tables(ROOT / "README.md") if len(row) == 10]
    readme = {row[0]: (row[4], row[7], row[8]) for row in rows}  # grace, auto in line, auto ahead
    for row in tables(ROOT / "docs" / "grouping.md"):
        if len(row) == 8 and row[1] == "1.0":
            told = [float(cell.strip("*%")) for cell in readme.pop(row[0])]
            cuts = [float(cell.split()[0].strip("*")) for cell in (row[2], row[6], row[7])]
            assert told == pytest.approx([100 * cut for cut in cuts], abs=0.06)
    assert set(readme) == {"trace", "---"}


def papers_values(command: str) -> dict[str, Any]:
    """What a command gave for the scoreboard."""
    text = (ROOT / "bench" / "data" / "papers.json").read_text("utf-8")
    return json.loads(text)[command]["values"]


def test_figure_6_is_that_of_the_scoreboard():
    values = papers_values("python -m bench schedule --what fig6 --json")
    names = {"DLRM": "dlrm", "Wide & Deep": "wide_deep", "DIN": "din", "BST": "bst"}
    rivals = ("TSSS", "TSMS", "MSSS", "StreamRec", "Opara", "RecOS")
    compared = 0
    for row in tables(ROOT / "docs" / "scheduling.md"):
        if len(row) == 8 and row[1] in ("1", "8", "15", "22", "30"):
            for rival, told in zip(rivals, row[2:], strict=True):
                value = values.get(f"latency_us.{names[row[0]]}.{row[1]}.{rival}")
                assert value is not None
                assert float(told) == pytest.approx(value / 1000, abs=0.0051)
                compared += 1
        part = f"ablation_percent.dlrm.{row[0]}"
        if len(row) == 5 and part in values:
            wanted = [values[f"ablation_percent.{model}.{row[0]}"] for model in names.values()]
            assert [float(cell) for cell in row[1:]] == pytest.approx(wanted, abs=0.051)
            compared += 1
    assert compared == 4 * 5 * 6 + 5
