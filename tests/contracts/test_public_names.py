"""The public names are these and no more; each loads from the module that defines it."""

import ast
import builtins
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import grace_torchrec
from grace_kernels import errors as kernel_errors

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


def test_errors_of_the_kernels_are_of_the_family_and_what_torch_raises() -> None:
    from grace_torchrec import errors

    assert issubclass(errors.NoBackward, NotImplementedError)
    assert issubclass(errors.NotInStock, NotImplementedError)
    kinds = {
        kernel_errors.OutsideTable: errors.OutsideTable,
        kernel_errors.WrongBatch: errors.WrongBatch,
        kernel_errors.NoBackward: errors.NoBackward,
        kernel_errors.NoCapture: errors.NoCapture,
    }
    for kind, ours in kinds.items():
        raised = kernel_errors.refusal(kind, "what")
        assert type(raised) is ours
        assert isinstance(raised, grace_torchrec.GraceError)
        assert pickle.loads(pickle.dumps(raised)).args == ("what",)  # also from another process


def test_kernels_raise_no_class_that_their_own_callers_would_miss() -> None:
    with pytest.raises(TypeError, match="GraceError does not derive from OutsideTable"):
        kernel_errors.raised_as({kernel_errors.OutsideTable: grace_torchrec.GraceError})


def test_no_room_raises_errors_outside_of_the_family() -> None:
    """Python's own are for callers that break Python's rules, and caught where they are raised."""
    allowed = {
        "strict_files.py": {"ValueError"},  # caught by its callers in this file
        "__init__.py": {"AttributeError"},  # what a module without a name raises
        "cli/main.py": {"SystemExit"},
        "modules/rewritten_batch.py": {"AttributeError"},
        "loadtest/generator.py": {"EOFError"},  # the end of its own process
    }
    package = Path(grace_torchrec.__file__).parent
    for file in sorted(package.rglob("*.py")):
        raised = {
            node.exc.func.id
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        }
        name = file.relative_to(package).as_posix()
        assert {kind for kind in raised if hasattr(builtins, kind)} <= allowed.get(name, set()), (
            name
        )


def test_import_loads_nothing_heavy() -> None:
    script = "import sys, grace_torchrec; dir(grace_torchrec); print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(result.stdout.split())
