"""Options, fixtures and the summary that all tests share.

``--traces DIR`` names a folder of real traces (NAME.npz); without it the tests that need one are
skipped. ``--soak`` runs the long tests, ``--soak-minutes`` says how long the one of the engine takes. The last line counts what was skipped and why.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import hypothesis
import pytest

NO_TRACES = "no traces"
SOAK = "soak"
NO_BROWSER = "no browser"
REASONS = (NO_TRACES, SOAK, NO_BROWSER)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--traces", metavar="DIR", help="folder of real traces, NAME.npz")
    parser.addoption("--soak", action="store_true", help="also run the long tests")
    parser.addoption(
        "--soak-minutes", type=float, default=1.0, help="length of the soak of the engine (1)"
    )


def pytest_configure(config: pytest.Config) -> None:
    # no deadline: a test must not fail because the machine is busy
    hypothesis.settings.register_profile("quick", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000)
    hypothesis.settings.load_profile("soak" if config.getoption("--soak") else "quick")
    if hasattr(config, "workerinput"):  # one of several processes of pytest-xdist
        import numba
        import torch

        torch.set_num_threads(1)
        numba.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason=f"{SOAK}: runs with --soak only"))


@pytest.fixture(scope="session")
def trace_path(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Return a function from the name of a real trace to its file; skips where there is none."""
    folder = request.config.getoption("--traces")

    def find(name: str) -> Path:
        if folder is None:
            pytest.skip(f"{NO_TRACES}: give --traces DIR with {name}.npz")
        path = Path(folder) / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"{NO_TRACES}: {name}.npz is not in the folder given with --traces")
        return path

    return find


@pytest.fixture(scope="module", autouse=True)
def saved_plans_follow_their_schema() -> Iterator[None]:
    """Every plan that a test saves in this process is held against the published schema too."""
    plans = sys.modules.get("grace_torchrec.plans.plan")  # not loaded: nothing here saves plans
    if plans is None:
        yield
        return
    import jsonschema

    text = resources.files("grace_torchrec.plans").joinpath("plan.schema.json").read_text("utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    save = plans.Plan.save

    def save_and_look(plan: Any, path: Any) -> None:
        save(plan, path)
        validator.validate(json.loads((Path(path) / "plan.json").read_text("utf-8")))

    plans.Plan.save = save_and_look
    yield
    plans.Plan.save = save


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    parts = [f"{reason}: {reasons[reason]}" for reason in (NO_TRACES, SOAK)]
    parts += [f"{reason}: {reasons[reason]}" for reason in (NO_BROWSER, "other") if reasons[reason]]
    terminalreporter.write_line(f"skipped: {reasons.total()} ({', '.join(parts)})")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = text.removeprefix("Skipped: ")
    return next((reason for reason in REASONS if text.startswith(f"{reason}:")), "other")
