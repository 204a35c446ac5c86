"""Watch: the freshness check of one module, ready for the next call.

Flow: laid_out.py makes it, direct.py asks it in every forward.  It notices what
:func:`~grace_torchrec.modules.freshness.require_fresh` does, with less to look at: who was
fresh when it was made is compared with what it was then.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor, float32

from grace_kernels._stale import first_stale_row
from grace_torchrec.modules import freshness

Seen = tuple[Tensor, int, int]  # a tensor, its address, its version counter


class Unchanged:
    """Tells whether tensors lie where they lay, and nobody PyTorch knows of wrote to them.

    Args:
        tensors: Any number of them, any of them more than once.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._seen: list[Seen] = []
        self._unversioned: list[tuple[Tensor, int]] = []  # inference tensors count no writes
        for tensor in {id(tensor): tensor for tensor in tensors}.values():  # each once
            if tensor.is_inference():
                self._unversioned.append((tensor, tensor.data_ptr()))
            else:
                self._seen.append((tensor, tensor.data_ptr(), tensor._version))

    def __call__(self) -> bool:
        """Look again."""
        for tensor, address, version in self._seen:
            if tensor.data_ptr() != address or tensor._version != version:
                return False
        return all(tensor.data_ptr() == address for tensor, address in self._unversioned)


class Watch:
    """What ``require_fresh`` checks, for tables that were fresh when this was made.

    Args:
        tables: As in ``require_fresh``, and so the rest.
        table_of: Which of them each table of stored rows belongs to.
        stored: Stored rows.
        indptrs: Sets of the stored rows.
        items: Items of the sets.
        labels: Names of the original tables for the message.

    Attributes:
        tensors: All that the answer depends on.

    Raises:
        StaleSums: stored rows are not the sums of their rows.
        NotSupported: a table has a type or layout that no kernel reads.
    """

    def __init__(
        self,
        tables: Sequence[Tensor],
        table_of: Sequence[int],
        stored: Sequence[Tensor],
        indptrs: Sequence[Tensor],
        items: Sequence[Tensor],
        labels: Sequence[str],
    ) -> None:
        # Sums of unknown origin are compared in full, and known from then on.
        freshness.require_fresh(tables, table_of, stored, indptrs, items, labels)
        self._build = freshness.last_build()
        self._labels = [labels[t] for t in table_of]
        self._built = [freshness.built_from(rows) for rows in stored]
        self._parts = [
            (tables[t], stored[place], indptrs[place], items[place])
            for place, t in enumerate(table_of)
        ]
        self.tensors = [tensor for parts in self._parts for tensor in parts]
        # The sample of float32 rows needs arrays over the same memory: made once.
        self._arrays = [
            tuple(part.detach().numpy() for part in parts) if parts[0].dtype == float32 else None
            for parts in self._parts
        ]
        self._calls = 0

    def is_current(self) -> bool:
        """Tell whether no sums were built since; the caller asks whether ``tensors`` are unchanged."""
        return self._build == freshness.last_build()

    def check(self) -> None:
        """Raise unless no optimiser stepped and the rows whose turn it is are their sums.

        Raises:
            StaleSums: names the table, the reason and what to do.
        """
        if not self._built:
            return
        for place, built in enumerate(self._built):
            if built.stepped:
                raise freshness.stale(self._labels[place], freshness.STEPPED)
        self._calls += 1
        turn = freshness.whose_turn(self._calls, len(self._built))
        if turn < 0:
            return
        arrays, built = self._arrays[turn], self._built[turn]

        def differing(first: int, last: int) -> int:
            if arrays is None:
                return freshness.differing_row(*self._parts[turn], first, last)
            return int(first_stale_row(*arrays, first, last))

        reason = freshness.compare_next(built, self._parts[turn][1].shape[0], differing)
        if reason is not None:
            raise freshness.stale(self._labels[turn], reason)
