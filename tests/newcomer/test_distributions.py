"""What ``pip install`` of the built wheel or sdist gives, far from the sources."""

import pytest

pytestmark = pytest.mark.soak
PACKAGES = ("grace_torchrec", "grace_kernels", "grace_sharding")
DATA = """
import importlib
from importlib import resources
for name in {packages}:
    folder = resources.files(importlib.import_module(name))
    print(folder)
    assert folder.joinpath("py.typed").is_file()
import grace_torchrec as grace
from grace_torchrec.schedule.simulator import Calibration
assert grace.MemoryModel.named("h200").hbm is not None  # machines.json
assert Calibration.named("a30")  # calibrations
assert resources.files("grace_torchrec.plans").joinpath("plan.schema.json").is_file()
assert [path.name for path in resources.files("grace_torchrec.views").joinpath("page").iterdir()]
"""


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def user(request, installed, wheel_and_sdist):
    """Someone who installed it."""
    return installed(wheel_and_sdist[request.param], request.param)


def test_the_packages_are_there_with_their_data(user):
    places = user.run(["python", "-c", DATA.format(packages=PACKAGES)]).out.split()
    assert len(places) == len(PACKAGES)
    assert all(str(user.folder.parent / "venv") in place for place in places)


def test_the_doctor_and_the_demo(user):
    assert "healthy" in user.run("grace-torchrec doctor").out
    told = user.run("grace-torchrec demo --trace LOG --out tiny")
    assert "outputs: equal to the stock model within rounding" in told.out
    assert told.complaints == ""
    assert (user.folder / "tiny" / "report.html").stat().st_size > 10_000


def test_both_install_the_same_files(wheel_and_sdist, installed):
    users = [installed(wheel_and_sdist[name], f"{name}-files") for name in ("wheel", "sdist")]
    files = [
        sorted(
            str(path.relative_to(site))
            for (site,) in [list((user.folder.parent / "venv" / "lib").glob("*/site-packages"))]
            for package in PACKAGES
            for path in (site / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        for user in users
    ]  # fmt: skip
    assert files[0] == files[1]
    assert len(files[0]) > 100
