"""The code on every page does what the page says.

How a page marks what runs and what does not: ``conftest.py``.
"""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
LANGUAGES = {"python", "sh", "setup", "text", "diff", "json", "toml"}
REASONS = {  # no excuse beside these
    "needs a GPU",
    "needs several processes",
    "needs real traces",
    "changes the environment",
    "takes minutes",
    "a test runs it",
    "other software",
}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_and_print_what_is_shown(page, blocks, run, folder):
    run(blocks(ROOT / page), {"__name__": page})


@pytest.mark.soak
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- soak -->" in (ROOT / page).read_text("utf-8")]
)
def test_long_blocks_run_too(page, blocks, run, folder):
    run(blocks(ROOT / page), {"__name__": page}, soak=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language_and_why_it_does_not_run(page, blocks):
    for block in blocks(ROOT / page):
        assert block.kind in LANGUAGES, f"{block.place}: a block of {block.kind or 'no language'!r}"
        if block.told.startswith("not run"):
            assert block.kind in ("python", "sh"), f"{block.place}: never runs"
            assert block.reason in REASONS, f"{block.place}: {block.reason!r} is no reason"


def test_most_code_runs(blocks, record_testsuite_property):
    """What does not run is counted: more than a third of the code would be too much."""
    counts = Counter(
        block.reason or "runs"
        for page in PAGES
        for block in blocks(ROOT / page)
        if block.kind in ("python", "sh")
    )
    for reason, count in counts.items():
        record_testsuite_property(f"blocks: {reason}", count)
    assert counts["runs"] >= 2 / 3 * counts.total(), counts


def run_text(text, blocks, run, folder, **given):
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    names = {"__name__": "page"}
    return run(blocks(page), names, **given), names


def test_blocks_share_names_and_hidden_ones_go_first(blocks, run, folder):
    text = "<!-- setup\na = 1\n-->\n\n```python\nb = a + 1\n```\n\n- in a list:\n\n  ```python\n  c = b + 1\n  ```\n"
    count, names = run_text(text, blocks, run, folder)
    assert (count, names["c"]) == (2, 3)


def test_a_wrong_block_is_named_by_page_and_line(blocks, run, folder):
    with pytest.raises(ZeroDivisionError) as error:
        run_text("words\n\n```python\n1 / 0\n```\n", blocks, run, folder)
    assert error.value.__notes__ == ["in the block at page.md:3"]
    assert error.traceback[-1].lineno + 1 == 4


def test_output_is_compared(blocks, run, folder):
    shown = "```python\nprint('one two')\n```\n\n<!-- output -->\n\n```text\none {}\n```\n"
    run_text(shown.format("..."), blocks, run, folder)
    with pytest.raises(AssertionError, match=r"page.md:\d+: shows"):
        run_text(shown.format("three"), blocks, run, folder)


def test_commands_end_as_the_page_says(blocks, run, folder):
    run_text("```sh\ngrace-torchrec --version   # ours\n```\n", blocks, run, folder)
    run_text(
        "<!-- exits 2 -->\n\n```sh\ngrace-torchrec inspect nowhere\n```\n", blocks, run, folder
    )
    with pytest.raises(AssertionError, match="inspect nowhere"):
        run_text("```sh\ngrace-torchrec inspect nowhere\n```\n", blocks, run, folder)
    with pytest.raises(AssertionError, match="no command of ours"):
        run_text("```sh\nrm -rf .\n```\n", blocks, run, folder)


def test_what_is_not_run_leaves_no_trace(blocks, run, folder):
    text = "<!-- not run: needs a GPU -->\n\n```python\n1 / 0\n```\n\n<!-- soak -->\n\n```python\n1 / 0\n```\n"
    assert run_text(text, blocks, run, folder)[0] == 0
    with pytest.raises(ZeroDivisionError):
        run_text(text, blocks, run, folder, soak=True)


def test_fences_without_a_language_are_found(blocks, folder):
    page = folder / "page.md"
    page.write_text("```\nimport this\n```\n", encoding="utf-8")
    assert [block.kind for block in blocks(page)] == [""]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import grace_torchrec as grace", "python"),
        ("plan = grace.plan(model, .., x)", "python"),  # wrong, so it must run and be seen
        ("a = 1", "python"),
        ("grace-torchrec doctor", "sh"),
        ("python -m bench lookup", "sh"),
        ("TRITON_INTERPRET=1 python x.py", "sh"),
        ("+import this", "diff"),
        ("generated 10,000 items, 12,000 bags", "text"),
        ("bags -> Trace", "text"),
    ],
)
def test_the_language_of_indented_blocks_is_guessed(text, kind, blocks, folder):
    page = folder / "page.md"
    page.write_text(f"words\n\n    {text}\n", encoding="utf-8")
    assert [block.kind for block in blocks(page)] == [kind]


def test_the_swap_of_the_readme_runs_where_nothing_gains_too(blocks, run, folder):
    """A reader's bags of one id each: the verdict is "leave stock", and the model stays as it was."""
    import torch
    from my_model import make
    from torchrec import KeyedJaggedTensor

    (swap,) = (
        block for block in blocks(ROOT / "README.md")
        if block.kind == "python" and "accelerate_" in block.text
    )  # fmt: skip
    model, _ = make()
    ids = torch.arange(2 * 64) % 300
    one_id_each = KeyedJaggedTensor(["item", "candidate"], ids, lengths=torch.ones_like(ids))
    names = {"model": model, "batches": [(torch.rand(64, 13), one_id_each)], "__name__": "page"}
    kept = dict(model.named_modules())
    assert run([swap], names) == 1
    assert names["swapped"].modules == {}
    assert dict(model.named_modules()) == kept
