"""Grouped bags: what is saved is what was asked for."""

import pytest

from grace_kernels.cpu import rewrite_clusters
from grace_torchrec.calibration.grouped_bags import grouped_bags
from grace_torchrec.errors import GraceError


@pytest.mark.parametrize(("pooling", "saved"), [(30, 0.2), (60, 0.4), (145, 0.25), (12, 0.0)])
def test_bags_save_the_share_that_was_asked_for(pooling, saved):
    made = grouped_bags(6000, pooling, 8, saved, num_batches=2)
    for ids, offsets in made.batches:
        rows, _, _ = rewrite_clusters(
            ids.numpy(), offsets.numpy(), None, made.sums.code.item_code_N
        )
        assert 1 - rows.size / ids.numel() == pytest.approx(saved, abs=1 / pooling + 1e-9)


def test_more_than_the_bags_can_save_is_refused():
    with pytest.raises(GraceError, match="cannot save"):
        grouped_bags(2000, 10, 8, 0.8, num_batches=1)
