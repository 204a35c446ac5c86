"""Float rows are kept of grouped items, and of no others."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.masters import Masters, grouped_items


def test_only_items_of_sums_are_kept_and_their_bytes_are_counted():
    sets = {
        "t__hbm_rows": (0, torch.tensor([0, 2, 3]), torch.tensor([4, 1, 9], dtype=torch.int32)),
        "t__host_rows": (0, torch.tensor([0, 3]), torch.tensor([1, 2, 4], dtype=torch.int32)),
        "u__host_rows": (1, torch.tensor([0, 2]), torch.tensor([0, 8], dtype=torch.int32)),
    }
    items = grouped_items(sets, 0)
    assert items.tolist() == [1, 2, 4]  # 9 is a hot row: a copy needs no float row of others
    weights = torch.randn(10, 3)
    masters = Masters.of({"t": items}, {"t": weights})
    assert torch.equal(masters.tables["t"].rows_GD, weights[items])
    assert masters.num_bytes == 3 * 8 + 3 * 3 * 4
    places, grouped = masters.tables["t"].places(torch.tensor([0, 2, 4, 9]))
    assert grouped.tolist() == [False, True, True, False]
    assert places[grouped].tolist() == [1, 2]


def test_files_have_no_name_so_nothing_can_be_left_of_them(tmp_path, monkeypatch):
    """Not even of those of a process that is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    masters = Masters.of({"t": torch.tensor([0, 1])}, {"t": torch.ones(2, 2)})
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del masters
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_room_is_asked_for_before_the_file_is_mapped(monkeypatch):
    """A write to a mapped file on a full disk would end the process."""

    def full(descriptor, begin, size):
        assert (begin, size) == (0, 2 * 3 * 4)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(GraceError, match="No space left on device; make room"):
        Masters.of({"t": torch.tensor([0, 1])}, {"t": torch.ones(2, 3)})
