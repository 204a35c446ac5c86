"""What was worked out last is kept, and no more, whoever adds."""

from concurrent.futures import ThreadPoolExecutor

from grace_torchrec.recent import Recent


def test_the_last_entries_are_kept_in_the_order_in_which_they_came() -> None:
    found: Recent[str, int] = Recent(3)
    for number, key in enumerate("abcadb"):
        found[key] = number
    assert list(found.items()) == [("a", 3), ("d", 4), ("b", 5)]


def test_what_is_asked_for_stays() -> None:
    found: Recent[int, int] = Recent(3)
    for number in range(9):
        found[number] = number
        assert found.get(0) == 0
    assert list(found) == [7, 8, 0]
    assert found.get(1) is None
    assert found.get(1, 5) == 5
    assert list(found) == [7, 8, 0]


def test_an_entry_is_never_missing_while_threads_ask_for_it() -> None:
    found: Recent[int, int] = Recent(3)
    found[0] = 1

    def ask(_: int) -> int:
        return sum(found.get(0, 0) for _ in range(500))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(8))) == [500] * 8


def test_threads_that_add_at_a_time_keep_to_the_bound() -> None:
    found: Recent[int, int] = Recent(5)

    def add(start: int) -> None:
        for key in range(start, start + 500):
            found[key] = key
            assert len(found) <= 6  # an entry comes before the oldest goes

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(0, 4000, 1000)))
    assert len(found) == 5
