"""Facts are collected from whatever stands on the path, broken or not, without importing it.

Each test builds a small site folder of its own and looks at it with an interpreter that knows no other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import grace_torchrec
from grace_torchrec.doctor import facts

ROOT = Path(grace_torchrec.__file__).parents[1]
LOOK = """
import json, sys
from dataclasses import asdict
from grace_torchrec.doctor.facts import collect
facts = asdict(collect())
print(json.dumps(facts | {"loaded": sorted(set(sys.modules) & {"torch", "numpy", "numba", "torchrec"})}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def install(site: Path, name: str, version: str, code: str | None = "", requires: str = "") -> None:
    """Put a distribution with one package (none if ``code`` is None) into a site folder."""
    package = name.replace("-cpu", "").replace("-", "_")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires.splitlines()]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    record = f"{info.name}/METADATA,,\n"
    if code is not None:
        (site / package).mkdir(exist_ok=True)
        (site / package / "__init__.py").write_text(code)
        record += f"{package}/__init__.py,,\n"
    (info / "RECORD").write_text(record)


def look(site: Path, cwd: Path | None = None) -> dict:
    """Collect the facts of an interpreter whose path is ``site`` and this repository."""
    folders = [site, ROOT, ROOT / "triton_kernels", ROOT / "sharding"]
    result = subprocess.run(
        [sys.executable, "-S", "-c", LOOK],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        cwd=cwd or site,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)


def test_an_empty_site_has_nothing_and_says_so(site: Path) -> None:
    facts = look(site)
    assert facts["distributions"] == []
    assert facts["torch_build"] == ""
    assert facts["shadows"] == {}
    assert facts["missing_own"] == []


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("cuda: Optional[str] = '12.8'", "cuda"),
        ("cuda = None\nhip: Optional[str] = '6.4'", "rocm"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "cpu"),
    ],
)
def test_the_build_of_torch_is_read_from_its_version_file(
    site: Path, line: str, build: str
) -> None:
    install(site, "torch", "2.13.0")
    (site / "torch" / "version.py").write_text(f"from typing import Optional\n{line}\n")
    assert look(site)["torch_build"] == build


def test_a_failing_import_is_attributed_and_stops_what_needs_it(site: Path) -> None:
    install(site, "torch", "2.13.0")
    install(site, "fbgemm-gpu-cpu", "1.8.0", "raise OSError('x.so: undefined symbol: _ZN3c10')")
    install(site, "torchrec", "1.8.0", "import fbgemm_gpu")
    install(site, "triton", "3.7.1", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    errors = look(site)["import_errors"]
    assert set(errors) == {"fbgemm_gpu", "triton"}
    assert "undefined symbol: _ZN3c10" in errors["fbgemm_gpu"]
    assert "died with SIGSEGV" in errors["triton"]


def test_nothing_is_imported_in_process(site: Path) -> None:
    for name in ("torch", "numpy", "numba", "torchrec"):
        install(site, name, "1.0")
    assert look(site)["loaded"] == []


def test_two_copies_and_a_name_only_shim_are_told_apart(site: Path) -> None:
    install(site, "torch", "2.13.0")
    install(site, "torch", "2.12.0")
    install(site, "fbgemm-gpu-cpu", "1.8.0")
    install(site, "fbgemm-gpu", "1.8.0+cpu.shim", code=None)
    found = {(d["name"], d["version"], d["has_code"]) for d in look(site)["distributions"]}
    assert found == {
        ("torch", "2.13.0", True),
        ("torch", "2.12.0", True),
        ("fbgemm-gpu-cpu", "1.8.0", True),
        ("fbgemm-gpu", "1.8.0+cpu.shim", False),
    }


def test_requirements_of_linux_stay_and_extras_go(site: Path) -> None:
    requires = (
        "triton==3.7.1 ; platform_system == 'Linux'\n"
        "numpy >=1.22 , <2.6\n"
        "importlib-metadata ; python_version < '3.10'\n"
        "optree>=0.13 ; extra == 'optree'\n"
        "colorama ; sys_platform == 'win32'"
    )
    install(site, "torch", "2.13.0", requires=requires)
    (torch,) = look(site)["distributions"]
    assert torch["requires"] == ["triton==3.7.1", "numpy>=1.22,<2.6"]


def test_a_file_in_the_working_folder_shadows_a_package(site: Path, tmp_path: Path) -> None:
    install(site, "torch", "2.13.0")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "torch.py").write_text("")
    assert look(site, tmp_path / "work")["shadows"] == {
        "torch": str(tmp_path / "work" / "torch.py")
    }


def test_a_package_that_no_distribution_owns_is_a_shadow(site: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", "torch", "2.13.0")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("")
    facts = look(Path(os.pathsep.join([str(site), str(tmp_path / "other")])), cwd=tmp_path)
    assert facts["shadows"] == {"torch": str(site / "torch" / "__init__.py")}


def test_links_to_one_store_of_packages_shadow_nothing(site: Path, tmp_path: Path) -> None:
    """Some installers link an environment's packages to a store; what is imported is the link."""
    store = tmp_path / "store"
    store.mkdir()
    install(store, "torch", "2.13.0")
    (site / "torch").symlink_to(store / "torch")
    (site / "torch-2.13.0.dist-info").mkdir()
    for file in (store / "torch-2.13.0.dist-info").iterdir():
        (site / "torch-2.13.0.dist-info" / file.name).symlink_to(file)
    assert look(site)["shadows"] == {}


def test_an_empty_folder_of_the_same_name_shadows_nothing(site: Path, tmp_path: Path) -> None:
    install(site, "torch", "2.13.0")
    (tmp_path / "work" / "torch").mkdir(parents=True)
    assert look(site, tmp_path / "work")["shadows"] == {}


def test_other_projects_packages_of_like_names_are_seen(site: Path) -> None:
    (site / "triton_kernels").mkdir()
    (site / "triton_kernels" / "__init__.py").write_text("")
    facts = look(site)
    assert facts["foreign"] == {"triton_kernels": str(site / "triton_kernels" / "__init__.py")}


@pytest.mark.parametrize(
    ("cpuinfo", "has_avx2"),
    [
        ("model name\t: an old Xeon\nflags\t\t: fpu sse4_2 avx\nbugs\t\t: avx2\n", False),
        ("flags\t\t: fpu avx avx2 avx512f\n", True),
        ("BogoMIPS\t: 50.00\nFeatures\t: fp asimd\n", False),
        ("", None),
        (None, None),
    ],
)
def test_the_cpu_is_read_from_what_linux_lists(tmp_path: Path, cpuinfo, has_avx2) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    assert facts._has_avx2(file) is has_avx2
