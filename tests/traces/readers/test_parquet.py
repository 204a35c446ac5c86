"""Parquet: one list column is the bags; without pyarrow it says what to install."""

import importlib

import numpy as np
import pytest

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.traces.readers import parquet, read, read_parquet, stream


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "bags.parquet"


def test_without_pyarrow_it_says_what_to_install(monkeypatch, file):
    real = importlib.import_module

    def absent(name, *more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *more)

    file.write_bytes(b"PAR1")
    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(NotSupported, match="pip install pyarrow") as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")


class TestWithPyarrow:
    """Everything else needs the library."""

    @pytest.fixture
    def write(self, file):
        arrow = pytest.importorskip("pyarrow")
        writer = pytest.importorskip("pyarrow.parquet")

        def write(types=None, **columns):
            arrays = {
                name: arrow.array(values, (types or {}).get(name))
                for name, values in columns.items()
            }
            writer.write_table(arrow.table(arrays), file)
            return file

        write.arrow = arrow
        return write

    def refused(self, path):
        with pytest.raises(GraceError) as caught:
            read_parquet(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        return message

    def test_lists_are_bags_and_a_missing_list_is_an_empty_one(self, write):
        path = write(
            user=[1, 2, 3, 4],
            ids=[[5, 2], None, [], [5]],
            weights=[[1.0, 0.5], [], None, [2.0]],
            time=[9, 8, 7, 6],
        )
        trace = read(path)
        assert bags_of(trace) == [[5, 2], [], [], [5]]
        assert trace.weights_L.tolist() == [1, 0.5, 2]
        assert trace.time_B.tolist() == [9, 8, 7, 6]

    @pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "int32", "uint16"])
    def test_every_kind_of_list_of_integers(self, write, kind):
        arrow = write.arrow
        made = {
            "list": arrow.list_(arrow.int64()),
            "large_list": arrow.large_list(arrow.int64()),
            "fixed": arrow.list_(arrow.int64(), 2),
            "int32": arrow.list_(arrow.int32()),
            "uint16": arrow.list_(arrow.uint16()),
        }[kind]
        assert bags_of(read(write({"h": made}, h=[[1, 2], [3, 4]]))) == [[1, 2], [3, 4]]

    def test_a_column_is_named_where_there_are_several(self, write):
        path = write(clicks=[[1]], buys=[[2]])
        assert "cannot tell which column holds the ids" in self.refused(path)
        assert bags_of(read(f"{path}#buys")) == [[2]]
        with pytest.raises(GraceError, match="a list column 'views'"):
            read(f"{path}#views")
        assert bags_of(read(write(items=[[1]], buys=[[2]]))) == [[1]]

    def test_batches_add_up_to_the_whole(self, write, monkeypatch):
        bags = [[n, n + 1] * (n % 3) for n in range(50)]
        path = write(ids=bags)
        monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
        assert [piece.num_bags for piece in stream(path)] == [7] * 7 + [1]
        assert bags_of(read(path)) == bags

    def test_times_may_be_timestamps(self, write):
        for unit, one in (("s", 1), ("ms", 1000), ("us", 10**6)):
            stamp = write.arrow.timestamp(unit, "UTC")
            path = write({"time": stamp}, ids=[[1]], time=[99 * one])
            assert read(path).time_B.tolist() == [99 * 10**6]

    def test_what_makes_no_bags_is_refused(self, write, file):
        assert "row 1: column ids holds a missing value" in self.refused(
            write(ids=[[1], [2, None]])
        )
        assert "behind row 0: id -3" in self.refused(write(ids=[[1], [-3]]))
        assert "row 1: 2 weights for 1 ids" in self.refused(
            write(ids=[[1], [2]], weights=[[1.0], [1.0, 2.0]])
        )
        assert "times are missing" in self.refused(write(ids=[[1], [2]], time=[1, None]))
        assert "cannot tell which column" in self.refused(write(ids=[1, 2]))
        file.write_bytes(b"PAR1\0\0")
        assert "not readable as parquet" in self.refused(file)
        file.write_text("version https://git-lfs.github.com/spec/v1\n")
        assert "git-lfs pointer" in self.refused(file)

    def test_a_file_without_rows_is_refused(self, write):
        arrow = write.arrow
        path = write({"ids": arrow.list_(arrow.int64())}, ids=[])
        assert "holds no bags" in self.refused(path)
