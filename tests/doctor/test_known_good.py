"""Comparison of releases agrees with the packaging standard."""

import re
from itertools import product
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from grace_torchrec.doctor.known_good import KNOWN_GOOD, TESTED, by_fbgemm, by_torch, satisfies

VERSIONS = ["1", "1.0", "1.0.3", "1.10", "1.9.12", "2.0.0", "2.13.0", "2.4.6", "2.6", "3.7.1"]
RANGES = [
    "==1.0.3",
    "==1.0",
    "==2.13.*",
    "!=1.10",
    ">=1.10",
    "<2.6,>=1.22",
    ">2.0",
    "<=1.10",
    "~=2.4",
]


@pytest.mark.parametrize("wanted", RANGES)
def test_satisfies_agrees_with_packaging(wanted: str) -> None:
    specifier = SpecifierSet(wanted)
    ours = [satisfies(version, f"name{wanted}") for version in VERSIONS]
    assert ours == [specifier.contains(version) for version in VERSIONS]


@pytest.mark.parametrize("local", ["+cpu", "+cu128", ".post1", "rc1", ".dev20260101"])
def test_a_suffix_does_not_change_the_series(local: str) -> None:
    assert satisfies(f"2.13.0{local}", "==2.13.*")


def test_an_unreadable_version_satisfies_no_release() -> None:
    assert not satisfies("INTERNAL", ">=0.61")


def test_rows_are_told_apart_by_torch_and_by_fbgemm() -> None:
    for row, other in product(KNOWN_GOOD, KNOWN_GOOD):
        assert (by_torch(row.torch) is other) == (row is other)
        assert (by_fbgemm(row.fbgemm) is other) == (row is other)
    assert by_torch("2.1.3") is None  # not 2.13


def test_the_documented_table_is_the_one_in_the_code() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "installing.md"
    rows = re.findall(r"^\| (\d\S+) \| (\S+) \| (\S+) \| (\S+) \|$", page.read_text(), re.MULTILINE)
    assert rows == [(row.torch, row.fbgemm, row.torchrec, row.triton) for row in KNOWN_GOOD]


def test_the_pinned_environment_is_the_tested_row() -> None:
    pins = (Path(__file__).resolve().parents[2] / "requirements" / "cpu.txt").read_text().split()
    tested = {
        f"torch=={TESTED.torch}",
        f"fbgemm-gpu-cpu=={TESTED.fbgemm}",
        f"torchrec=={TESTED.torchrec}",
        f"triton=={TESTED.triton}",
    }
    assert tested <= set(pins)
