"""The disk cache of compiled code: two processes, other sources and sudden ends never mix code up."""

import numpy as np
import pytest

from grace_kernels._jit import CodeFiles, jit


@pytest.fixture
def files(tmp_path):
    """Return what one process sees of the cache of a function."""
    return lambda stamp="s" * 64: CodeFiles(str(tmp_path), "module.f-1.py311", stamp)


def test_what_was_kept_comes_back(files):
    files().save(("int64",), "code for int64")
    files().save(("none",), "code for none")
    assert files().load(("int64",)) == "code for int64"
    assert files().load(("none",)) == "code for none"
    assert files().load(("float64",)) is None


@pytest.mark.parametrize("step", ["_save_data", "_load_index", "_save_index"])
def test_a_process_that_compiles_at_the_same_time_is_in_nobodys_way(files, monkeypatch, step):
    ours = files()
    done = getattr(ours, step)

    def between(*arguments):
        """Let another process keep its code just before this step."""
        monkeypatch.setattr(ours, step, done)
        files().save(("none",), "code for none")
        return done(*arguments)

    monkeypatch.setattr(ours, step, between)
    ours.save(("int64",), "code for int64")
    assert files().load(("int64",)) == "code for int64"
    assert files().load(("none",)) in ("code for none", None)  # None: it is compiled once more


@pytest.mark.parametrize("step", ["_save_data", "_save_index"])
def test_an_end_at_any_step_leaves_no_code_of_other_sources(files, monkeypatch, step):
    files("old" * 20).save(("int64",), "old code")
    ours = files()

    def killed(*arguments):
        """End here."""
        raise KeyboardInterrupt

    monkeypatch.setattr(ours, step, killed)
    with pytest.raises(KeyboardInterrupt):
        ours.save(("int64",), "new code")
    assert files().load(("int64",)) is None
    files().save(("int64",), "new code")
    assert files().load(("int64",)) == "new code"


def test_code_of_other_sources_is_removed(files, tmp_path):
    files("old" * 20).save(("int64",), "old code")
    files().save(("int64",), "new code")
    files().save(("none",), "new code too")
    assert len(list(tmp_path.glob("*.nbc"))) == 2
    assert files("old" * 20).load(("int64",)) is None


def test_compiled_functions_use_it():
    @jit
    def twice(values):
        return values * 2

    assert isinstance(twice._cache._cache_file, CodeFiles)
    assert twice(np.arange(3)).tolist() == [0, 2, 4]
