"""Watch: each tensor is asked once, and only float32 rows are compared as float32 rows."""

import pytest
import torch

from grace_torchrec.errors import StaleSums
from grace_torchrec.modules import freshness
from grace_torchrec.modules.watch import Unchanged, Watch


class Counted(torch.Tensor):
    """A tensor that counts who asks where it lies."""

    asked = 0

    def data_ptr(self):
        """Return the address."""
        self.asked += 1
        return super().data_ptr()


@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_given_more_than_once_is_looked_at_once(inference):
    with torch.inference_mode(inference):
        rows, other = torch.zeros(2).as_subclass(Counted), torch.ones(2)
    unchanged = Unchanged([rows, other, rows, rows])
    rows.asked = 0
    assert unchanged()
    assert rows.asked == 1


def test_a_tensor_given_more_than_once_is_still_watched():
    rows = torch.zeros(2)
    unchanged = Unchanged([rows, rows])
    rows.add_(1)
    assert not unchanged()


def check_in_turn(watch):
    """Check as often as it takes until every stored row had its turn."""
    for _ in range(2 * freshness.CALLS_BETWEEN):
        watch.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_of_every_type_are_compared_as_what_they_are(dtype):
    table = torch.arange(8).reshape(4, 2).to(dtype)
    stored = (table[:1] + table[1:2]).clone()
    indptr, items = torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32)
    watch = Watch([table], [0], [stored], [indptr], [items], ["'t'"])
    check_in_turn(watch)
    stored.numpy()[0, 1] += 1  # a write that PyTorch does not see
    with pytest.raises(StaleSums, match="stored row 0"):
        check_in_turn(watch)
