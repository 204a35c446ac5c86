"""Pages hang together: links lead somewhere, pictures are what their script draws, keys are told."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

import grace_torchrec

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
FIGURES = ROOT / "docs" / "figures"


def links_of(page: Path) -> list[str]:
    """Targets of all links and pictures of a page."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for part in token.children or []:
            found += [part.attrs[name] for name in ("href", "src") if name in part.attrs]
    return found


def anchors_of(page: Path) -> set[str]:
    """Anchors of the headings of a page, as git hosts and MyST make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page):
    for link in links_of(ROOT / page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{page}: {link}"


def test_every_page_stands_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    told = [
        re.sub(r".*<(.*)>", r"\1", line)
        for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or any(Path(page.stem).match(pattern) for pattern in told), page


def test_pictures_are_what_the_script_draws():
    spec = importlib.util.spec_from_file_location("draw", FIGURES / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = dict(draw() for draw in module.PICTURES)
    assert {path.name for path in FIGURES.glob("*.svg")} == set(drawn)
    for name, text in drawn.items():
        assert (FIGURES / name).read_text(encoding="utf-8") == text, f"{name}: draw it again"
        root = ElementTree.fromstring(text)
        assert root.find("{http://www.w3.org/2000/svg}title").text


def test_every_picture_is_shown_with_words():
    shown = {}
    for page in PAGES:
        shown |= {
            Path(src).name: alt
            for alt, src in re.findall(
                r"!\[(.*?)\]\((figures/.*?)\)", (ROOT / page).read_text("utf-8")
            )
        }
    assert set(shown) == {path.name for path in FIGURES.glob("*.svg")}
    assert all(len(alt) > 20 for alt in shown.values())


def test_the_plan_page_tells_every_key_of_the_schema():
    schema = json.loads((ROOT / "grace_torchrec/plans/plan.schema.json").read_text("utf-8"))
    page = (ROOT / "docs" / "plan_file.md").read_text(encoding="utf-8")
    kinds = ("memory", "options", "table", "spec", "placement", "tier_use", "predicted")
    keys = set(schema["properties"])
    for kind in kinds:
        keys |= set(schema["$defs"][kind]["properties"])
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_the_api_page_lists_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = " ".join(re.findall(r"```\{public-names\}\n(.*?)```", text, re.DOTALL)).split()
    assert len(listed) == len(set(listed))
    assert set(grace_torchrec.__all__) <= set(listed)


@pytest.mark.soak
def test_sphinx_builds_every_page_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="other: sphinx comes with make docs")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "concepts.html").is_file()
