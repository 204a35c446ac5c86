"""Whose an error is: code of a user, of a library, or of these packages, wherever it lies."""

import json
from pathlib import Path

import click
import pytest

import grace_torchrec
from grace_torchrec.cli.words import unforeseen

OURS = Path(grace_torchrec.__file__).parent


def raised_at(*files: str) -> tuple[str, bool]:
    """Tell an error that the last of some files raises, each called by the one before."""
    spaces = {"then": compile("raise EOFError", files[-1], "exec")}
    for file in reversed(files[:-1]):
        spaces = {"then": compile("exec(below['then'], below)", file, "exec"), "below": spaces}
    with pytest.raises(EOFError) as raised:
        exec(spaces["then"], spaces)
    raised.value.__traceback__ = raised.value.__traceback__.tb_next  # less this function
    return unforeseen(raised.value, "again")


@pytest.mark.parametrize(
    "file",
    [
        "/srv/ann/python3.11-work/models.py",
        "/srv/ann/site-packages/models.py",
        f"{OURS}_models/x.py",
        f"{OURS.parent}/models.py",
    ],
)
def test_code_of_a_user_is_theirs_whatever_its_folder_is_called(file):
    message, is_users = raised_at(str(OURS / "cli" / "plan.py"), file)
    assert is_users
    assert f"raised by code of yours at {Path(file).name}:1" in message


@pytest.mark.parametrize("file", [json.__file__, click.__file__, "<string>"])
def test_what_a_library_raises_is_of_the_code_that_called_it(file):
    ours = str(OURS / "cli" / "plan.py")
    assert "raised at plan.py:1 and not foreseen" in raised_at(ours, file)[0]
    assert "by code of yours at m.py:1" in raised_at(ours, "/srv/ann/m.py", file)[0]
