"""The safetensors reader against the safetensors library, and over files that are broken in many ways."""

import json

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nextn.families.files import CheckpointError
from nextn.models.safetensors_reader import SafetensorsFile

TENSORS = {
    "b.half": torch.randn(3, 5).half(),
    "a.bf16": torch.randn(7).bfloat16(),
    "c.f32": torch.randn(2, 3, 4),
    "d.fp8": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "e.empty": torch.empty(0, 4),
    "f.scalar": torch.tensor(2.5),
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_same_bits_as_the_library(path):
    with SafetensorsFile(path) as file, safe_open(path, "pt") as theirs:
        assert sorted(file.tensors) == sorted(TENSORS)
        starts = [t.start for t in file.tensors.values()]
        assert starts == sorted(starts)
        for name in file.tensors:
            ours, expected = file.read(name), theirs.get_tensor(name)
            assert ours.dtype == expected.dtype
            assert ours.shape == expected.shape
            assert torch.equal(ours.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def test_rows_of_the_first_axis(path):
    with SafetensorsFile(path) as file:
        for name, begin, end in [("b.half", 1, 3), ("c.f32", 0, 1), ("a.bf16", 2, 7), ("b.half", 2, 2)]:
            found = file.read(name, range(begin, end))
            assert torch.equal(found, TENSORS[name][begin:end])
            assert found.untyped_storage().nbytes() == found.nbytes


def test_a_tensor_owns_its_memory(path):
    with SafetensorsFile(path) as file:
        tensor = file.read("c.f32")
    path.write_bytes(b"")
    assert torch.equal(tensor, TENSORS["c.f32"])
    assert tensor.untyped_storage().nbytes() == tensor.numel() * 4
    tensor.add_(1)


def test_any_truncation_is_an_error_that_names_the_file(path):
    """Every length, as the library itself refuses every length."""
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            SafetensorsFile(path)
    with pytest.raises(SafetensorError):
        safe_open(path, "pt")


def test_truncated_data_names_the_tensor(path):
    with SafetensorsFile(path) as file:
        last = [t.name for t in file.tensors.values() if t.end > t.start][-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"cut short at tensor {last}"):
        SafetensorsFile(path)


def test_truncated_while_open_names_the_tensor(path):
    with SafetensorsFile(path) as file:
        size = path.stat().st_size
        last = [t.name for t in file.tensors.values() if t.end > t.start][-1]
        with open(path, "r+b") as same:
            same.truncate(size - 1)
        with pytest.raises(CheckpointError, match=f"cut short inside tensor {last}"):
            file.read(last)


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{nope", b"", "header is not JSON"),
        (b"\xff\xff", b"", "header is not JSON"),
        (b"[" * 100_000, b"", "header is not JSON"),
        (b"[]", b"", "header is not a JSON object"),
        ({"w": 3}, b"", "entry for tensor w is malformed"),
        ({"w": {"dtype": "F32"}}, b"", "entry for tensor w is malformed"),
        ({"w": entry(shape=(-1,))}, b"1234", "entry for tensor w is malformed"),
        ({"w": entry(shape=(1.0,))}, b"1234", "entry for tensor w is malformed"),
        ({"w": entry(offsets=(4, 0))}, b"1234", "entry for tensor w is malformed"),
        ({"w": entry(offsets=(0, 4, 8))}, b"1234", "entry for tensor w is malformed"),
        ({"w": entry(shape=(2,))}, b"1234", r"tensor w, F32 \[2\], has 4 bytes"),
        ({"v": entry(), "w": entry()}, b"1234", "tensor w starts at byte 0, not at 4"),
        ({"w": entry(offsets=(4, 8))}, b"12345678", "tensor w starts at byte 4, not at 0"),
        ({"w": entry()}, b"12345", "1 bytes follow the last tensor"),
        ({"w": entry()}, b"123", "cut short at tensor w, which ends at byte 4 of 3"),
    ],
)
def test_broken_headers(tmp_path, header, data, message):
    path = tmp_path / "model.safetensors"
    write(path, header, data)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    with pytest.raises(SafetensorError):
        safe_open(path, "pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file: 0 bytes"),
        (b"<html><body>404 not found", "not a safetensors file: 25 bytes, first are b'<html><b'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        ((10**6).to_bytes(8, "little") + b"{}", "cut short inside the header"),
    ],
)
def test_other_files(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(path)
    with pytest.raises(CheckpointError, match="other cannot be read: No such file"):
        SafetensorsFile(tmp_path / "other")


def test_unknown_dtypes_are_listed_but_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, {"w": entry("F4", (2,), (0, 1))}, b"1")
    with SafetensorsFile(path) as file:
        assert file.tensors["w"].dtype == "F4"
