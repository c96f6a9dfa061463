"""Reads and checks the header of a GGUF file, versions 2 and 3, little endian.

    "GGUF" | version u32 | tensors u64 | keys u64 | keys: name, type u32, value | tensors: name,
    dimensions u32, each u64 (columns first), type u32, offset u64 | padding to the alignment | data

A string is its length (u64) and UTF-8. An array is the type of its values (u32), its length (u64) and the
values. The specification is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. ggml refuses
everything that is refused here.

Files can come from anywhere. So every number is compared with the bytes that exist before anything is
allocated for it. The file is read, not mapped: cutting a mapped file short would end the process.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.files import MAGIC
from nextn.gguf.types import TYPES, Type

VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
LARGEST = 1 << 26  # maximum bytes of a header; a vocabulary of 260,000 tokens takes 15 million
BEGINNING = 1 << 20  # bytes of the first read
LARGEST_ALIGNMENT = 1 << 20
MOST_DIMENSIONS = 4
LARGEST_DIMENSION = 1 << 40
LONGEST_NAME = 1 << 16  # maximum bytes of a key or a tensor's name; ggml allows 64 for tensors
# Type of a value in a file -> its letter in the struct module. 7 is bool, 8 string, 9 array.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file. shape: rows first, as in torch. start, end: offsets of its bytes in the file."""

    name: str
    type: Type
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Number of rows of the tensor as a matrix: the product of all axes except the last. For a vector,
        its number of values."""
        return math.prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]


@dataclass(frozen=True)
class Header:
    path: Path
    version: int
    values: dict[str, Value]
    tensors: dict[str, Tensor]


def read_header(path: Path) -> Header:
    """Raises CheckpointError, which names the file, and the key or tensor that is wrong."""
    try:
        with open(path, "rb") as file:
            return _Reader(path, file).header()
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror}") from e


class _Reader:
    """Reads a header from beginning to end. at: the part that is being read, for messages."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.size = path, file, os.fstat(file.fileno()).st_size
        self.limit = min(self.size, LARGEST)
        self.data = file.read(BEGINNING)
        self.position, self.at = 0, "its first bytes"

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}")

    def header(self) -> Header:
        start = self.data[:64]
        if start[:4] != MAGIC:
            if start.startswith(b"version https://git-lfs"):
                raise self.error("it is a Git LFS pointer, not the file itself; run git lfs pull")
            raise self.error(f"it is not a GGUF file: it begins with {start[:4]!r}, not {MAGIC!r}")
        self.position = 4
        version = self.number("I")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise self.error("it is big-endian; nextn reads only little-endian GGUF files")
            raise self.error(f"it is of GGUF version {version}; nextn reads versions 2 and 3")
        tensors, keys = self.number("Q"), self.number("Q")
        self.room(keys, 13, "keys")
        values: dict[str, Value] = {}
        for i in range(keys):
            self.at = f"key {i} of {keys}"
            name = self.string(LONGEST_NAME)
            self.at = f"key {name!r}"
            if name in values:
                raise self.error(f"{self.at} occurs twice")
            values[name] = self.value()
        self.at = "its list of tensors"
        self.room(tensors, 28, "tensors")
        infos = [self.tensor(i, tensors) for i in range(tensors)]
        return Header(self.path, version, values, self.placed(infos, self.alignment(values)))

    def take(self, size: int) -> int:
        """Takes the next `size` bytes; reads them from the file if necessary. Returns where they begin in
        `data`."""
        begin, end = self.position, self.position + size
        if end > self.limit:
            if end <= self.size:
                raise self.error(f"its header has more than {LARGEST} bytes, in {self.at}")
            raise self.error(f"it is cut short in {self.at}: {self.size} bytes of at least {end}")
        if end > len(self.data):
            self.data += self.file.read(max(end, 2 * len(self.data)) - len(self.data))
            if end > len(self.data):
                raise self.error(f"it became shorter while {self.at} was read")
        self.position = end
        return begin

    def room(self, count: int, least: int, what: str) -> None:
        """Raises CheckpointError if fewer than count * least bytes follow. Called before anything is
        allocated for `count` things."""
        left = self.limit - self.position
        if count * least > left:
            limit = f"a header has at most {LARGEST}" if self.size > LARGEST else f"{left} bytes follow"
            raise self.error(f"{self.at}: it claims {count} {what} of {least} bytes or more, but {limit}")

    def number(self, code: str) -> int:
        begin = self.take(struct.calcsize("<" + code))
        return int(struct.unpack_from("<" + code, self.data, begin)[0])

    def string(self, longest: int = LARGEST) -> str:
        length = self.number("Q")
        if length > longest:
            raise self.error(f"{self.at}: a string claims {length} bytes, more than {longest}")
        begin = self.take(length)
        try:
            return self.data[begin : self.position].decode()
        except UnicodeDecodeError as e:
            raise self.error(f"{self.at}: a string is not UTF-8: {e}") from e

    def value(self) -> Value:
        kind = self.number("I")
        if kind == ARRAY:
            return self.array()
        if kind == STRING:
            return self.string()
        return self.scalars(kind, 1)[0]

    def array(self) -> Value:
        kind, length = self.number("I"), self.number("Q")
        if kind == ARRAY:
            raise self.error(f"{self.at} is an array of arrays, which nextn does not read")
        if kind != STRING:
            return self.scalars(kind, length)
        self.room(length, 8, "strings")
        return self.strings(length)

    def strings(self, count: int) -> list[str]:
        """`count` strings, like `string`, but fast enough for the hundreds of thousands of a vocabulary."""
        data, position = self.data, self.position
        found: list[str] = []
        try:
            for _ in range(count):
                begin = position + 8
                end = begin + int.from_bytes(data[position:begin], "little")
                if end > len(data):
                    self.position = position
                    end = begin + self.number("Q")
                    self.take(end - begin)
                    data = self.data
                found.append(data[begin:end].decode())
                position = end
        except UnicodeDecodeError as e:
            raise self.error(f"{self.at}: string {len(found)} is not UTF-8: {e}") from e
        self.position = position
        return found

    def scalars(self, kind: int, count: int) -> list[int] | list[float] | list[bool]:
        if kind != BOOL and kind not in NUMBERS:
            raise self.error(f"{self.at} is of type {kind}, which GGUF does not have")
        code = NUMBERS.get(kind, "B")
        size = struct.calcsize("<" + code)
        self.room(count, size, "values")
        begin = self.take(count * size)
        found = struct.unpack_from(f"<{count}{code}", self.data, begin)
        if kind == BOOL:
            if any(v > 1 for v in found):
                raise self.error(f"{self.at}: a bool must be 0 or 1")
            return [v == 1 for v in found]
        return list(found)

    def tensor(self, index: int, count: int) -> Tensor:
        """The next tensor. Its `start` and `end` are relative to the data after the header."""
        self.at = f"tensor {index} of {count}"
        name = self.string(LONGEST_NAME)
        self.at = f"tensor {name!r}"
        dimensions = self.number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self.error(f"{self.at} has {dimensions} dimensions; GGUF has 1 to {MOST_DIMENSIONS}")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        if not all(1 <= n <= LARGEST_DIMENSION for n in shape):
            raise self.error(f"{self.at} has the shape {list(shape)}; a dimension is out of range")
        kind, start = self.number("I"), self.number("Q")
        if kind not in TYPES:
            raise self.error(f"{self.at} is of the unknown type {kind}")
        found = TYPES[kind]
        if shape[-1] % found.values:
            raise self.error(
                f"{self.at} has rows of {shape[-1]} values, not a multiple of {found.name}'s blocks of "
                f"{found.values} values"
            )
        return Tensor(name, found, shape, start, start + math.prod(shape) // found.values * found.bytes)

    def alignment(self, values: dict[str, Value]) -> int:
        found = values.get(ALIGNMENT, 32)
        sound = isinstance(found, int) and not isinstance(found, bool) and 0 < found <= LARGEST_ALIGNMENT
        if not sound or found & (found - 1):  # type: ignore[operator]
            raise self.error(f"key {ALIGNMENT!r} is {found!r}; it must be a power of two, at most 2**20")
        return int(found)  # type: ignore[arg-type]

    def placed(self, infos: list[Tensor], alignment: int) -> dict[str, Tensor]:
        """The tensors by name, in the order of the data, with offsets in the file. Raises CheckpointError if
        they overlap, are not aligned, occur twice, or end after the file."""
        data = -(-self.position // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        end, before = 0, ""
        for t in sorted(infos, key=lambda t: (t.start, t.end)):
            if t.name in tensors:
                raise self.error(f"tensor {t.name!r} occurs twice")
            if t.start % alignment:
                raise self.error(f"tensor {t.name!r} begins at byte {t.start}, not a multiple of {alignment}")
            if t.start < end:
                raise self.error(f"tensor {t.name!r} overlaps with tensor {before!r}")
            if data + t.end > self.size:
                raise self.error(
                    f"it is cut short in tensor {t.name!r}, which ends at byte {data + t.end} of {self.size}"
                )
            tensors[t.name] = Tensor(t.name, t.type, t.shape, data + t.start, data + t.end)
            end, before = t.end, t.name
        return tensors
