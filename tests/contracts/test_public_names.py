"""The public names are these and no more; each loads from the module that defines it."""

import subprocess
import sys

import pytest

import grace_torchrec

PUBLIC = [
    "Engine",
    "GraceEmbeddingBagCollection",
    "GraceError",
    "MemoryModel",
    "NoPlan",
    "NotSupported",
    "Plan",
    "PlanMismatch",
    "PlanOptions",
    "Profile",
    "Refresher",
    "RewrittenBatch",
    "Served",
    "StaleSums",
    "Swapped",
    "Trace",
    "TraceRecorder",
    "accelerate_",
    "calibrate",
    "convert",
    "load_served",
    "plan",
    "profile",
    "publish_delta",
    "rebuild_sums_",
    "restore_",
    "rewrite",
    "schedule_",
    "verify",
]
HEAVY = {"torch", "numpy", "scipy", "numba", "triton", "torchrec", "fbgemm_gpu"}


def test_the_public_names_are_these_and_no_more() -> None:
    assert grace_torchrec.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(grace_torchrec))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    value = getattr(grace_torchrec, name)
    assert value.__name__ == name
    assert getattr(sys.modules[value.__module__], name) is value
    assert value.__doc__


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("Plann", "Plan"), ("acelerate_", "accelerate_"), ("MemoryModle", "MemoryModel")],
)
def test_an_unknown_name_lists_close_ones(wrong: str, meant: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"no attribute '{wrong}'; did you mean .*\b{meant}\b"
    ):
        getattr(grace_torchrec, wrong)


def test_a_name_like_no_other_lists_none() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'qqqqqq'$"):
        grace_torchrec.qqqqqq  # noqa: B018


def test_errors_are_one_family() -> None:
    from grace_sharding.memory_tiers import MemoryModelError
    from grace_sharding.table_reads import DoesNotFit

    for error in (MemoryModelError, DoesNotFit):  # of the layer below
        assert issubclass(error, grace_torchrec.GraceError)
    with pytest.raises(grace_torchrec.GraceError, match="machine 'abacus': unknown"):
        grace_torchrec.MemoryModel.named("abacus")


def test_errors_are_value_errors() -> None:
    for name in ("PlanMismatch", "NoPlan", "StaleSums", "NotSupported"):
        assert issubclass(getattr(grace_torchrec, name), grace_torchrec.GraceError)
    assert issubclass(grace_torchrec.GraceError, ValueError)


def test_import_loads_nothing_heavy() -> None:
    script = "import sys, grace_torchrec; dir(grace_torchrec); print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(result.stdout.split())
