"""These tests need kernels imported for Triton's interpreter: test_in_interpreter.py starts them.

TRITON_INTERPRET must be set before the kernels are imported, so they run in a process of their own.
"""

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture
def bad_ids() -> torch.Tensor:
    """A counter of bad ids."""
    return torch.zeros(1, dtype=torch.int32)
