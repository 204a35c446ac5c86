"""What the CPU kernels raise for ids and rows that a table has not, with the place where they stand.

Flow: cpu.py and cpu_codes.py raise these; the ops say which table and feature it was.
"""

from typing import Any

import numpy as np


class BadId(ValueError):
    """An id is outside its table.

    Attributes:
        position: Where it stands in the ids.
        id: The id itself.
        sample: Bag of its feature.
        num_rows: Rows of the table.
        feature: Number of the feature.
    """

    def __init__(
        self, position: int, id_: int, bag_offsets: Any, num_rows: int, feature: int = 0
    ) -> None:
        super().__init__(f"id {id_} at position {position} is outside the table")
        self.position = position
        self.id = id_
        self.sample = int(np.searchsorted(bag_offsets, position, side="right")) - 1
        self.num_rows = num_rows
        self.feature = feature


class BadRow(ValueError):
    """A rewritten bag holds a row that its table has not.

    Attributes:
        position: Where it stands in the rows.
        row: The row itself.
        feature: Number of the feature.
    """

    def __init__(self, position: int, row: int, feature: int = 0) -> None:
        super().__init__(f"row {row} at position {position} is outside the table and its sums")
        self.position = position
        self.row = row
        self.feature = feature
