"""Names of compiled functions: two of one name could be linked to each other's machine code."""

import importlib
import pkgutil

from numba.core.registry import CPUDispatcher

import grace_kernels


def test_no_two_compiled_functions_have_one_name():
    found: dict[str, set[int]] = {}
    for module in pkgutil.iter_modules(grace_kernels.__path__):
        if not module.name.startswith("_"):
            continue
        for value in vars(importlib.import_module(f"grace_kernels.{module.name}")).values():
            if isinstance(value, CPUDispatcher):
                function = value.py_func
                name = f"{function.__module__}.{function.__qualname__}"
                found.setdefault(name, set()).add(id(value))
    assert len(found) > 10
    assert [name for name, functions in found.items() if len(functions) > 1] == []
