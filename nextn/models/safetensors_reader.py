"""Reads a safetensors file: the header when it is opened, and then its tensors, one by one.

    8 bytes: length n of the header, little endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | data

It uses plain reads, not safetensors.safe_open. The tensors of safe_open are views of one mapping of the whole
file: every page that was read counts as memory until the mapping is closed, so loading takes twice the
weights. Here a tensor owns its bytes. If a file is cut short, the error names the tensor where it ends.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from nextn.families.files import CheckpointError
from nextn.models.memory import read_fresh
from nextn.ops.stored import Format

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
}
MAX_HEADER = 100_000_000  # bytes; the format's own limit
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in the file: its dtype as the format names it, and bytes [start, end) of the data.

    format: given if the matrix is read as `Stored`. widened: how the matrix is stored, if it is stored in a
    few bits and read as plain values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    format: Format | None = None
    widened: str = ""

    def extent(self, rows: range | None) -> tuple[int, int]:
        """[start, end) of these consecutive rows of the first axis, or of all. Rows are stored in order."""
        if rows is None:
            return self.start, self.end
        assert 0 <= rows.start <= rows.stop <= self.shape[0], (self.name, self.shape, rows)
        size = (self.end - self.start) // max(1, self.shape[0])
        return self.start + rows.start * size, self.start + rows.stop * size


class SafetensorsFile:
    """An open file. tensors: in file order. Its errors are CheckpointErrors that name file and tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror}") from e
        try:
            self._data_start, entries = self._header()
            self.tensors = {t.name: t for t in self._checked(entries)}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, name: str, rows: range | None = None) -> Tensor:
        """One tensor, or these rows of its first axis, as stored; its dtype must be one of DTYPES."""
        info = self.tensors[name]
        start, end = info.extent(rows)
        raw = read_fresh(self._file, self._data_start + start, end - start)
        if raw is None:
            raise CheckpointError(f"{self.path}: cut short inside tensor {name}")
        shape = info.shape if rows is None else (len(rows), *info.shape[1:])
        return raw.view(DTYPES[info.dtype]).view(shape)

    def _header(self) -> tuple[int, dict[str, Any]]:
        """(offset of the data in the file, the header's entries)."""
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(64)
        if head.startswith(LFS_POINTER):
            raise CheckpointError(f"{self.path} is a Git LFS pointer, not the file itself; run git lfs pull")
        length = int.from_bytes(head[:8], "little")
        if size < 8 or length > MAX_HEADER:
            raise CheckpointError(
                f"{self.path} is not a safetensors file: {size} bytes, first are {head[:8]!r}"
            )
        if 8 + length > size:
            raise CheckpointError(
                f"{self.path}: cut short inside the header; {size} bytes of {8 + length} or more"
            )
        self._file.seek(8)
        try:
            entries = json.loads(self._file.read(length))
        except (ValueError, RecursionError) as e:
            raise CheckpointError(f"{self.path}: its safetensors header is not JSON: {e}") from e
        if not isinstance(entries, dict):
            raise CheckpointError(f"{self.path}: its safetensors header is not a JSON object")
        entries.pop("__metadata__", None)
        return 8 + length, entries

    def _checked(self, entries: dict[str, Any]) -> list[TensorInfo]:
        """The entries in order of their offsets. Raises CheckpointError if they leave gaps, overlap, or do
        not fill the file exactly."""
        infos = sorted((self._info(name, e) for name, e in entries.items()), key=lambda t: (t.start, t.end))
        available = os.fstat(self._file.fileno()).st_size - self._data_start
        position = 0
        for t in infos:
            if t.start != position:
                raise CheckpointError(
                    f"{self.path}: tensor {t.name} starts at byte {t.start}, not at {position}"
                )
            if t.end > available:
                raise CheckpointError(
                    f"{self.path}: cut short at tensor {t.name}, which ends at byte {t.end} of {available}"
                )
            position = t.end
        if position != available:
            raise CheckpointError(f"{self.path}: {available - position} bytes follow the last tensor")
        return infos

    def _info(self, name: str, entry: Any) -> TensorInfo:
        try:
            dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
            start, end = entry["data_offsets"]
            numbers = (*shape, start, end)
            sound = all(type(v) is int and v >= 0 for v in numbers) and start <= end
        except (TypeError, KeyError, ValueError):
            sound = False
        if not sound:
            raise CheckpointError(
                f"{self.path}: the header's entry for tensor {name} is malformed: {entry!r}"
            )
        if dtype in DTYPES and math.prod(shape) * DTYPES[dtype].itemsize != end - start:
            raise CheckpointError(
                f"{self.path}: tensor {name}, {dtype} {list(shape)}, has {end - start} bytes in the header"
            )
        return TensorInfo(name, dtype, shape, start, end)
