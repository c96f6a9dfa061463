"""Reads the headers of a model's GGUF files: one file, or parts NAME-00001-of-00003.gguf."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.files import PART
from nextn.gguf.header import Header, Tensor, read_header
from nextn.gguf.metadata import Metadata

MOST_WEIGHTS = 1 << 16  # maximum number of values in a tensor that config.json is made from


@dataclass(frozen=True)
class Parts:
    """All parts of a model. meta: the keys of the first part, which has all of them. tensors: those of all
    parts, by name."""

    headers: Sequence[Header]
    meta: Metadata
    tensors: dict[str, Tensor]

    def part_of(self, name: str) -> Header:
        return next(header for header in self.headers if name in header.tensors)

    def weights(self, tensor: Tensor) -> Sequence[float]:
        """The values of a small f32 tensor. Raises CheckpointError if it is large or has another type."""
        path, count = self.part_of(tensor.name).path, (tensor.end - tensor.start) // 4
        if tensor.type.name != "F32" or count > MOST_WEIGHTS:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} must be of at most {MOST_WEIGHTS} F32 values"
            )
        with open(path, "rb") as file:
            file.seek(tensor.start)
            return struct.unpack(f"<{count}f", file.read(4 * count))


def read_parts(path: Path) -> Parts:
    """path: the file, or any of the parts. Raises CheckpointError, which names the file, and the key or
    tensor that is wrong."""
    first = read_header(path)
    count, number = _split(first)
    if count == 1:
        return Parts([first], Metadata(path, first.values), dict(first.tensors))
    named = PART.fullmatch(path.name)
    if named is None or (int(named[2]), int(named[3])) != (number + 1, count):
        raise CheckpointError(
            f"{path}: it is part {number + 1} of {count}; it must be named "
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf, in one folder with the other parts"
        )
    files = [path.with_name(f"{named[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(f"{path}: its folder lacks other parts: {', '.join(missing[:3])}{more}")
    headers = [first if i == number else read_header(file) for i, file in enumerate(files)]
    tensors: dict[str, Tensor] = {}
    for i, header in enumerate(headers):
        if _split(header) != (count, i):
            raise CheckpointError(
                f"{header.path}: its name says part {i + 1} of {count}, but its keys do not"
            )
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(f"{header.path}: tensor {name!r} is also in another part")
            tensors[name] = tensor
    meta = Metadata(files[0], headers[0].values)
    if meta.integer("split.tensors.count", len(tensors)) != len(tensors):
        raise meta.error("split.tensors.count", f"the parts have {len(tensors)} tensors")
    return Parts(headers, meta, tensors)


def _split(header: Header) -> tuple[int, int]:
    """(number of parts, index of this part, from 0)."""
    count, number = header.values.get("split.count", 1), header.values.get("split.no", 0)
    if type(count) is not int or type(number) is not int or not 0 <= number < max(1, count) <= 99999:
        raise CheckpointError(
            f"{header.path}: keys 'split.count' and 'split.no' are {count!r} and {number!r}; they must be "
            "the number of parts and the part's index"
        )
    return max(1, count), number
