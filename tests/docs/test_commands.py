"""Every command that a page names exists, and has the options that it is given there."""

import re
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from bench.run import cli as bench_cli
from grace_torchrec.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(grace-torchrec|python -m bench)\s+([a-z][a-z0-9_-]*)([^#]*)", re.DOTALL)


def commands_on(text: str) -> list[tuple[str, str, list[str]]]:
    """Return (program, sub-command, options) of every command in code, of lines and of blocks."""
    pieces: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            pieces += token.content.replace("\\\n", " ").splitlines()
        pieces += [part.content for part in token.children or [] if part.type == "code_inline"]
    found = (NAMED.search(piece) for piece in pieces)
    return [
        (one[1], one[2], re.findall(r"(?<!\S)(--?[a-z][\w-]*)", one[3])) for one in found if one
    ]


def unknown(program: str, name: str, options: list[str]) -> list[str]:
    """Return the options that a command lacks; its name where there is no such command."""
    group = cli if program == "grace-torchrec" else bench_cli
    command = group.get_command(click.Context(group), name)
    if command is None:
        return [name]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return [option for option in options if option not in known | {"--help"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page):
    for program, name, options in commands_on(page.read_text("utf-8")):
        assert unknown(program, name, options) == [], f"{page.name}: {program} {name}"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`python -m bench nothing --json`", ["nothing"]),
        ("`python -m bench traffic --budgets 1`", ["--budgets"]),
        ("    X=1 grace-torchrec inspekt plan  # a comment --nor this\n", ["inspekt"]),
        ("```sh\ngrace-torchrec plan m:f \\\n  --profil P\n```\n", ["--profil"]),
        ("`grace-torchrec serve-bench --clients 1,8`, `grace-torchrec plan --help`", []),
    ],
)
def test_what_does_not_exist_is_found(text, missing):
    assert [one for command in commands_on(text) for one in unknown(*command)] == missing
