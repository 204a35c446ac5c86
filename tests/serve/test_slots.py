"""Readers see one version, whole; with two slots they never wait for a writer."""

import threading

import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.slots import Slots


class Pair:
    """Two numbers that every write changes together."""

    def __init__(self) -> None:
        self.a = self.b = 0

    def copy(self) -> "Pair":
        other = Pair()
        other.a, other.b = self.a, self.b
        return other


def add_one(pair: Pair) -> None:
    pair.a += 1
    pair.b += 1


@pytest.mark.parametrize("copy", [None, Pair.copy], ids=["one slot", "two slots"])
def test_a_write_reaches_every_content_and_counts(copy):
    slots = Slots(Pair(), copy, version=5)
    assert [slots.publish(add_one) for _ in range(3)] == [6, 7, 8]
    assert {(pair.a, pair.b) for pair in slots.contents} == {(3, 3)}
    with slots.reading() as (pair, version):
        assert (pair.a, version) == (3, 8)


def test_a_reader_keeps_its_version_and_others_do_not_wait_for_the_writer():
    slots = Slots(Pair(), Pair.copy)
    with slots.reading() as (old, version):
        writer = threading.Thread(target=slots.publish, args=(add_one,))
        writer.start()
        seen = []
        while not seen or seen[-1] == 0:  # the writer flips and then waits for the reader above
            with slots.reading() as (pair, now):
                assert pair.a == pair.b == now
                seen.append(now)
        assert (old.a, old.b, version) == (0, 0, 0)
        assert writer.is_alive()  # the content that is still read has not been written
    writer.join(10)
    assert not writer.is_alive()
    assert [pair.a for pair in slots.contents] == [1, 1]


def test_with_one_slot_readers_wait_for_a_write_and_no_longer():
    slots = Slots(Pair())
    inside, go_on = threading.Event(), threading.Event()

    def write(pair: Pair) -> None:
        pair.a += 1
        inside.set()
        assert go_on.wait(10)
        pair.b += 1

    seen: list[tuple[int, int]] = []

    def read() -> None:
        with slots.reading() as (pair, _):
            seen.append((pair.a, pair.b))

    writer = threading.Thread(target=slots.publish, args=(write,))
    writer.start()
    assert inside.wait(10)
    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.05)
    assert not seen  # a half-written content is shown to nobody
    go_on.set()
    reader.join(10)
    writer.join(10)
    assert seen == [(1, 1)]


@pytest.mark.parametrize("copy", [None, Pair.copy], ids=["one slot", "two slots"])
def test_no_reader_ever_sees_a_mixture(copy):
    slots = Slots(Pair(), copy)
    mixed: list[tuple[int, int, int]] = []
    done = threading.Event()

    def read() -> None:
        last = 0
        while not done.is_set():
            with slots.reading() as (pair, version):
                a, b = pair.a, pair.b
            if not (a == b == version >= last):
                mixed.append((a, b, version))
            last = version

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for _ in range(500):
        slots.publish(add_one)
    done.set()
    for reader in readers:
        reader.join(10)
    assert not mixed
    assert slots.version == 500


def test_a_write_that_fails_half_way_is_seen_by_nobody_and_ends_writing():
    def fail(pair: Pair) -> None:
        pair.a += 1
        raise OSError("disk")

    two = Slots(Pair(), Pair.copy)
    with pytest.raises(OSError, match="disk"):
        two.publish(fail)
    with two.reading() as (pair, version):
        assert (pair.a, pair.b, version) == (0, 0, 0)
    with pytest.raises(GraceError, match=r"failed half-way \(disk\)"):
        two.publish(add_one)

    one = Slots(Pair())
    with pytest.raises(OSError, match="disk"):
        one.publish(fail)
    with pytest.raises(GraceError, match="convert or load the model again"), one.reading():
        pass


def test_a_copy_that_fails_leaves_the_only_content_to_readers_and_writers():
    room = []

    def copy(pair: Pair) -> Pair:
        if not room:
            raise MemoryError("no room")
        return pair.copy()

    slots = Slots(Pair(), copy)
    with pytest.raises(MemoryError):
        slots.publish(add_one)
    with slots.reading() as (pair, version):
        assert (pair.a, pair.b, version) == (0, 0, 0)
    room.append(True)
    assert slots.publish(add_one) == 1
    assert [(pair.a, pair.b) for pair in slots.contents] == [(1, 1), (1, 1)]
