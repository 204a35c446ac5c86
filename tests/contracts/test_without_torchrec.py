"""Analysis, planning of traces, kernels and the command line import where TorchRec is not installed."""

import subprocess
import sys

BLOCKED = ("torchrec", "fbgemm_gpu", "torchx", "tensorboard", "hypothesis")
NEED_TORCHREC = (  # the rooms that are about TorchRec's own classes
    "grace_torchrec.loadtest",
    "grace_torchrec.modules",
    "grace_torchrec.serve",
    "grace_torchrec.launch",
    "grace_sharding.estimator",
    "grace_sharding.obstacles",
    "grace_sharding.planner",
    "grace_sharding.planner_stats",
    "grace_sharding.remedies",
    "grace_sharding._torchrec",
)
IMPORT_ALL = f"""
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ImportError(f"{{name}} is blocked")

def visit(name):
    if name in {NEED_TORCHREC}:
        return
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        print(f"failed {{name}}: {{error}}")
        return
    print(f"imported {{name}}")
    for found in pkgutil.iter_modules(getattr(module, "__path__", []), name + "."):
        visit(found.name)

sys.meta_path.insert(0, Blocked())
for name in ("grace_torchrec", "grace_kernels", "grace_sharding"):
    visit(name)
"""


def test_every_other_module_imports_without_torchrec() -> None:
    script = [sys.executable, "-c", IMPORT_ALL]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in lines if line.startswith("failed")] == []
    for name in ("grace_torchrec.cli.main", "grace_torchrec.traces.trace", "grace_kernels"):
        assert f"imported {name}" in lines
