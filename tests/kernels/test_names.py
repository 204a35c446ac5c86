"""Names of compiled functions: two of one name could be linked to each other's machine code."""

import importlib
import pkgutil
from itertools import product

from numba.core.registry import CPUDispatcher

import grace_kernels
from grace_kernels import _sum_rows
from grace_kernels._sum_rows import FLOAT32, INT8, sum_function


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


def test_sums_of_each_kind_have_a_name_of_their_own():
    for dim, kind, weighted, ahead in product(
        (2, 3), (FLOAT32, INT8), (False, True), (False, True)
    ):
        sum_function(dim, kind, weighted, ahead)
    names = [compiled.__qualname__ for compiled in _sum_rows._kept]
    assert len(names) >= 16
    assert len(set(names)) == len(names)
