"""The rows that hold an item are found from the sets, and they alone."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.serve.members import Members

SETS = st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=5), max_size=12)


@given(SETS, st.sets(st.integers(0, 20), max_size=6))
def test_touched_rows_are_those_whose_set_holds_an_item(sets, items):
    ends = [0]
    for one in sets:
        ends.append(ends[-1] + len(one))
    flat = [item for one in sets for item in sorted(one)]
    members = Members.of(torch.tensor(ends), torch.tensor(flat, dtype=torch.int32))
    rows, indptr, found = members.touched(torch.tensor(sorted(items), dtype=torch.int64))
    wanted = [row for row, one in enumerate(sets) if one & items]
    assert rows.tolist() == wanted
    bounds = indptr.tolist()
    assert [found[a:b].tolist() for a, b in itertools.pairwise(bounds)] == [
        sorted(sets[row]) for row in wanted
    ]
