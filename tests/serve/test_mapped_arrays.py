"""What is written is read back bit for bit, or refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.mapped_arrays import TYPES, checksum, read_arrays, write_arrays

SHAPES = ((), (0,), (1,), (3, 0), (5,), (2, 3), (7, 11, 3))


def arrays():
    generator = torch.Generator().manual_seed(0)
    return {
        f"{str(dtype).removeprefix('torch.')} {shape}": torch.randint(
            0, 2, shape, generator=generator
        ).to(dtype)
        for dtype in TYPES
        for shape in SHAPES
    }


def test_every_type_and_shape_comes_back(tmp_path):
    written = arrays()
    told = write_arrays(tmp_path / "a", written)
    read = read_arrays(tmp_path / "a", told, "served")
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name


def test_views_are_written_as_they_look(tmp_path):
    base = torch.arange(24.0).view(4, 6)
    written = {"t": base.t(), "step": base[::2, 1:4], "one": base[1:2, 3]}
    told = write_arrays(tmp_path / "a", written)
    read = read_arrays(tmp_path / "a", told, "served")
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


def test_writes_to_what_was_read_stay_in_this_process(tmp_path):
    told = write_arrays(tmp_path / "a", {"x": torch.zeros(100)})
    read_arrays(tmp_path / "a", told, "served")["x"].add_(1)
    assert not load_file(tmp_path / "a")["x"].any()


@given(st.integers(0, 63), st.integers(0, 7))
def test_every_bit_counts(place, bit):
    rows = torch.zeros(64, dtype=torch.uint8)
    told = checksum({"x": rows})
    rows[place] ^= 1 << bit
    assert checksum({"x": rows}) != told


def test_order_of_rows_names_types_and_shapes_count():
    x = torch.arange(6, dtype=torch.int64)
    told = {
        checksum({"x": x}),
        checksum({"y": x}),
        checksum({"x": x.flip(0)}),
        checksum({"x": x.view(2, 3)}),
        checksum({"x": x.view(torch.float64)}),
        checksum({"x": torch.cat([x, x.new_zeros(1)])}),
    }
    assert len(told) == 6
    assert checksum({"x": x, "y": x + 1}) == checksum({"y": x + 1, "x": x})


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "other"])
def test_damage_is_refused(damage, tmp_path):
    path = tmp_path / "a"
    told = write_arrays(path, {"x": torch.arange(1000)})
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-500] ^= 4
    elif damage == "cut":
        data = data[:-100]
    elif damage == "other":
        data = bytearray(b"not such a file")
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    said = "no such file" if damage == "gone" else "write the served model again"
    with pytest.raises(GraceError, match=said):
        read_arrays(path, told, "served model")


def test_types_that_files_do_not_hold_are_refused(tmp_path):
    with pytest.raises(GraceError, match=r"'x' is torch\.complex64"):
        write_arrays(tmp_path / "a", {"x": torch.zeros(1, dtype=torch.complex64)})


@pytest.mark.parametrize(
    "made", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_mkldnn]
)
def test_tensors_that_are_no_plain_arrays_are_refused_by_name(made, tmp_path):
    with pytest.raises(GraceError, match="save: 'attributes/odd' is not a plain array"):
        write_arrays(tmp_path / "a", {"fine": torch.ones(2), "attributes/odd": made(torch.eye(3))})
    assert not (tmp_path / "a").exists()


def test_every_array_is_aligned_for_its_numbers(tmp_path):
    rows = {
        "a odd": torch.zeros(3, dtype=torch.uint8),
        "b rows": torch.zeros(16, dtype=torch.uint8),
    }
    write_arrays(tmp_path / "a", {**rows, **arrays()})
    data = (tmp_path / "a").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert (size + 8) % 64 == 0
    header = json.loads(data[8 : 8 + size])
    kinds = {kind: dtype.itemsize for dtype, kind in TYPES.items()}
    misfits = [n for n, told in header.items() if told["data_offsets"][0] % kinds[told["dtype"]]]
    assert not misfits
    assert header["b rows"]["data_offsets"][0] % 16 == 0  # may hold float rows
