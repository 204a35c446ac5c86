"""The repository names no path of the machine it was written on and no host of a package index."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(  # written so that this file does not match itself
    r"/[w]ork/|/[r]oot/|/[h]ome/\w|/[U]sers/\w|/opt/[pw]\w|[.]library/|[p]ypi[.]org|[p]ythonhosted[.]"
    r"|[d]ownload[.]pytorch|[r]egistry[.]npmjs|[i]ndex-url[ =]\w+:"
)


def repository_files() -> list[Path]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: no list of the repository's files")
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_this_machine() -> None:
    found = []
    for file in repository_files():
        lines = file.read_bytes().decode("utf-8", errors="replace").splitlines()
        found += [
            f"{file.relative_to(ROOT)}:{number}: {match.group()}"
            for number, line in enumerate(lines, 1)
            if (match := FORBIDDEN.search(line))
        ]
    assert found == []
