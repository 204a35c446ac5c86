"""One grid, two forms: the same cells on a terminal and in Markdown."""

import io

from rich.console import Console

from grace_torchrec.views.tables import Grid, short_names

GRID = Grid(
    "title [x]", ("name", "n"), [("a|b [red]c", "1,000"), ("long " * 30, "2")], frozenset({"name"})
)


def test_numbers_are_never_cut_and_texts_are_folded():
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(GRID.rich())
    shown = console.export_text()
    assert "1,000" in shown
    assert "[red]" in shown
    assert shown.count("long") == 30
    assert max(map(len, shown.splitlines())) <= 40


def test_a_bar_inside_a_cell_does_not_end_it():
    lines = GRID.markdown().splitlines()
    assert lines[:4] == ["**title [x]**", "", "| name | n |", "| :-- | --: |"]
    assert lines[4] == "| a\\|b [red]c | 1,000 |"


def test_names_are_short_where_they_stay_apart():
    assert short_names(["a.b.t", "a.c.t", "a.u"]) == {
        "a.b.t": "a.b.t",
        "a.c.t": "a.c.t",
        "a.u": "u",
    }
