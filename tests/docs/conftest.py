"""Pages and their blocks: what is code on a page, and how it is run.

A block stands between fences that name its language; of one that is indented it is guessed. A block
runs unless the comment above it says why not. Comments of HTML are hidden where pages are read:

    <!-- setup ... -->        Python that runs before the next block and is not shown
    <!-- not run: REASON -->  the next block is not run
    <!-- soak -->             the next block runs in soak only
    <!-- exits 1 -->          the next block of commands ends with this exit code
    <!-- output -->           the next block is what the block before it printed ("..." fits anything)

``python`` blocks of a page run in their order with one set of names, in an empty folder.
``sh`` blocks hold commands; those of grace-torchrec run, others need a reason. ``json`` is parsed.
"""

import contextlib
import doctest
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
RUNS = ("python", "sh", "setup")
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        place: Page and line, for messages.
        line: Lines before its first line.
        kind: Its language; ``setup`` for hidden Python, ``""`` where fences name none.
        text: What stands in it.
        told: The comment above it.
    """

    place: str
    line: int
    kind: str
    text: str
    told: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it runs."""
        return self.told.removeprefix("not run:").strip() if self.told.startswith("not run") else ""


def pages() -> list[Path]:
    """Every page that users read."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order, hidden set-ups too."""
    blocks: list[Block] = []
    told = ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        place = f"{page.name}:{line}"
        if token.type == "html_block" and (comment := COMMENT.match(token.content.strip())):
            told = comment[1]
            if told.startswith("setup"):
                text = told.removeprefix("setup").lstrip(" ").lstrip("\n")
                blocks.append(Block(place, line, "setup", text, ""))
                told = ""
        elif token.type in ("fence", "code_block"):
            kind = token.info.strip() if token.type == "fence" else guessed(token.content)
            if not kind.startswith("{"):  # a directive of Sphinx
                blocks.append(Block(place, line, kind, token.content, told))
            told = ""
        elif token.type.endswith("_open") or token.type == "inline":
            told = ""
    return blocks


def guessed(text: str) -> str:
    """Return the language of an indented block."""
    if re.match(r"(grace-torchrec|python3?|make|pip|pytest|torchx|[A-Z_]+=\w+) ", text):
        return "sh"
    if text.startswith(("+", "-")):
        return "diff"
    if re.match(r"(import|from) \w", text) or re.search(r"\bgrace\.\w+\(", text):
        return "python"
    try:
        compile(text, "block", "exec")
    except SyntaxError:
        return "text"
    return "python"


def run_blocks(blocks: list[Block], names: dict[str, Any], soak: bool = False) -> int:
    """Run blocks in the working folder; return how many were run.

    Args:
        blocks: Of one page.
        names: What Python blocks find, and what they leave.
        soak: Run those too that soak alone runs.
    """
    count, printed = 0, ""
    for block in blocks:
        if block.told == "output":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            fits = doctest.OutputChecker().check_output(block.text, printed, flags)
            assert fits, f"{block.place}: shows\n{block.text}\nprinted is\n{printed}"
        if block.kind == "json":
            json.loads(block.text)
        if block.kind not in RUNS or block.reason or (block.told == "soak" and not soak):
            continue
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                run_python(block, names) if block.kind != "sh" else run_commands(block)
        except Exception as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"in the block at {block.place}")
            raise
        printed = out.getvalue()
        count += block.kind != "setup"
    return count


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run Python; lines of a traceback are those of the page."""
    code = compile("\n" * block.line + block.text, block.place.partition(":")[0], "exec")
    exec(code, names)


def run_commands(block: Block) -> None:
    """Run the commands of a block in this process, as the installed script would."""
    from grace_torchrec.cli.main import main

    wanted = int(block.told.removeprefix("exits")) if block.told.startswith("exits") else 0
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[:3] == ["python", "-m", "grace_torchrec"]:
            words[:3] = ["grace-torchrec"]
        assert words[0] == "grace-torchrec", f"{line}: no command of ours; say why it is not run"
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
        assert ended.value.code == wanted, line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of a page: its user's model lies in it, in ``my_model.py``."""
    shutil.copy(HERE / "my_model.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    yield tmp_path
    sys.modules.pop("my_model", None)


@pytest.fixture(scope="session")
def all_pages() -> list[Path]:
    """Every page that users read."""
    return pages()


@pytest.fixture(scope="session")
def blocks() -> Callable[[Path], list[Block]]:
    """:func:`blocks_of`."""
    return blocks_of


@pytest.fixture(scope="session")
def run() -> Callable[..., int]:
    """:func:`run_blocks`."""
    return run_blocks
