"""package.module:function: whatever is written in its place is answered with what to write."""

import sys

import pytest

from grace_torchrec.cli.function_argument import call_function, spelled
from grace_torchrec.errors import GraceError

FILES = {
    "mine.py": "def make(): return 7\ndef other(path): return path\ndef _own(): pass\n",
    "sub/deep.py": "def make(): return 8\n",
    "torn.py": "def f(:\n",
    "needs.py": "import no_such_package\n",
    "lacks.py": "from mine import nothing\n",
    "wrong.py": "int('x')\n",
    "my-own.py": "",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_modules_are_found_in_the_current_folder():
    """As with python -m, whatever started the command; also in a folder that is no package."""
    assert call_function("MODEL", "mine:make") == 7
    assert call_function("MODEL", "sub.deep:make") == 8


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mine", "write mine:make, with the name of your function for make"),
        ("mine.py", "write mine:make, with the name of your function for make"),
        ("mine:", "write mine:make, with the name of your function for make"),
        ("./mine.py:make", "write mine:make"),
        ("sub/deep.py:make", "write sub.deep:make"),
        ("sub/../mine.py:make", "write mine:make"),
        ("sub.deep", "write sub.deep:make, with the name of your function for make"),
        ("sub.deep.make", "write sub.deep:make"),
        ("mine:make()", "write mine:make"),
        ("mine:make:make", "write mine:make"),
        (":make", "write package.module:make"),
        ("", "write package.module:make"),
        ("/far/mine.py:fn", "change to /far, or add it to PYTHONPATH, and write mine:fn"),
        ("my-own.py:fn", "rename my-own.py: a module's name has letters, digits and _ alone"),
    ],
)
def test_what_is_no_function_is_spelled_as_one(text, told):
    assert spelled(text) == told
    with pytest.raises(GraceError, match="names no function of a module; ") as error:
        call_function("MODEL", text)
    assert str(error.value).endswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mine1:make", "no module mine1 in the current folder {here}, nor installed"),
        ("sub.no:make", "no module sub.no in the current folder {here}, nor installed"),
        ("mine:nothing", "mine.py has no nothing; check the name (its functions: make, other)"),
        ("mine:other", "takes arguments"),
        ("needs:make", "its code needs no_such_package, which is not installed"),
        ("lacks:make", "cannot import name 'nothing' from 'mine'"),
        ("torn:make", "{here}/torn.py:1: invalid syntax; mend it there"),
    ],
)
def test_what_cannot_be_called_is_told_with_its_place(text, told, here):
    with pytest.raises(GraceError) as error:
        call_function("MODEL", text)
    assert str(error.value).startswith(f"MODEL '{text}': ")
    assert told.format(here=here) in str(error.value)


def test_an_error_of_a_module_is_not_taken_for_a_wrong_name():
    with pytest.raises(ValueError, match="invalid literal"):
        call_function("MODEL", "wrong:make")
