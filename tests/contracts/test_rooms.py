"""Every room says what it is and in which order to read it, and leaves no file out."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("grace_torchrec", "triton_kernels/grace_kernels", "sharding/grace_sharding")
ROOMS = [
    found.parent
    for folder in PRODUCT
    for found in sorted((ROOT / folder).rglob("__init__.py"))
    if found.parent != ROOT / "grace_torchrec"
]
SUB_COMMANDS = {"cli"}  # a file of it is found by the name of its command


def told(room: Path) -> str:
    """The docstring of a package."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    assert text, room
    return text


def files(room: Path) -> set[str]:
    """Names of the files and folders of a room that somebody is to read."""
    parts = {part.stem for part in room.glob("*.py")} | {
        part.parent.name for part in room.glob("*/__init__.py")
    }
    return {name for name in parts if not name.startswith("_")}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_names_all_its_files_in_order(room):
    text = told(room)
    assert "Read " in text
    left_out = {name for name in files(room) if not re.search(rf"\b{name}\b", text)}
    assert room.name in SUB_COMMANDS or left_out == set(), (
        "name them where the room says how to read it"
    )


def test_the_package_and_the_page_name_all_rooms():
    rooms = {room.name for room in ROOMS if room.parent == ROOT / "grace_torchrec"}
    page = (ROOT / "docs" / "reading.md").read_text("utf-8")
    for text in (told(ROOT / "grace_torchrec"), page):
        assert {name for name in rooms if not re.search(rf"\b{name}\b", text)} == set()
    for folder in ("grace_kernels", "grace_sharding", "bench", "examples", "tests"):
        assert folder in page
