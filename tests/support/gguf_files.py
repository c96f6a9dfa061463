"""GGUF files, made byte by byte, so that a test can write any fault into one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from nextn.gguf.header import ARRAY, BOOL, NUMBERS, STRING

U32, I32, F32, U64 = 4, 5, 6, 10
F32_TENSOR, Q8_0_TENSOR = 0, 8


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    """A key's type and value. content of an array: (type of its values, values)."""
    return struct.pack("<I", kind) + _bare(kind, content)


def _bare(kind: int, content: Any) -> bytes:
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        of, values = content
        return struct.pack("<IQ", of, len(values)) + b"".join(_bare(of, v) for v in values)
    return struct.pack("<" + ("B" if kind == BOOL else NUMBERS[kind]), content)


def guessed(content: Any) -> bytes:
    """The value with the type that a converter gives it."""
    if isinstance(content, bool):
        return value(BOOL, content)
    if isinstance(content, int):
        return value(U32, content)
    if isinstance(content, float):
        return value(F32, content)
    if isinstance(content, str):
        return value(STRING, content)
    kind = (
        STRING if content and isinstance(content[0], str) else F32 if isinstance(content[0], float) else I32
    )
    return value(ARRAY, (kind, content))


def tensor(name: str, dimensions: Sequence[int], kind: int, offset: int) -> bytes:
    """An entry for a tensor. dimensions: columns first."""
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    keys: Mapping[str, bytes] | Sequence[tuple[str, bytes]] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file. keys: by name, with values as `value` makes them. counts: the numbers of tensors and keys
    that the header claims."""
    pairs = list(keys.items()) if isinstance(keys, Mapping) else list(keys)
    told = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, *told)
    head += b"".join(string(name) + v for name, v in pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data
