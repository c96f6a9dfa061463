"""Frames on a byte stream: a prefix, a header, and the bytes of pages, if any. The header is a message in
MessagePack.

The prefix contains both lengths, the header's checksum and its own checksum. So a changed length is noticed
at once, without a wait for bytes that never arrive. After the pages follows their checksum.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.messages import AnyMessage

MAGIC = b"nxKV"
PREFIX = struct.Struct("<4sIIII")  # magic, bytes of the header, bytes of the body, checksums: header, prefix
MOST_HEADER = 16 << 10
READ_AHEAD = MOST_HEADER + (8 << 10)  # bytes that are read at once: headers, and beginnings of bodies
TAIL = 4  # bytes of the checksum after a body. It follows the body because it is computed while that is sent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class Broken(Exception):
    """The other end has violated the protocol. The connection cannot be used any more."""


def frame_start(message: AnyMessage, body: int = 0) -> bytes:
    """Returns a frame's prefix and header. body: number of bytes that follow."""
    header = _encoder.encode(message)
    start = PREFIX.pack(MAGIC, len(header), body, zlib.crc32(header), 0)[:-4]
    return b"".join((start, struct.pack("<I", zlib.crc32(start)), header))


class Body(Protocol):
    """The destination of a frame's body, including the `TAIL` bytes after it. expected: the checksum in those
    bytes."""

    @property
    def left(self) -> int:
        """Number of bytes that have not arrived yet."""

    @property
    def expected(self) -> int: ...

    def feed(self, data: memoryview) -> None:
        """Takes the next bytes: at most `READ_AHEAD`, and at most `left`."""

    def fill(self, end: socket.socket) -> int:
        """Reads from the socket. Returns the number of bytes read; 0 if the stream has ended. Raises
        OSError."""


class ArrayBody:
    """A body that is read into memory. data: the body without the checksum."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        """memory: as long as the body and its checksum together."""
        self._memory, self._filled = memory, 0

    @property
    def left(self) -> int:
        return len(self._memory) - self._filled

    @property
    def data(self) -> NDArray[np.uint8]:
        return self._memory[:-TAIL]

    @property
    def expected(self) -> int:
        return int.from_bytes(self._memory[-TAIL:].tobytes(), "big")

    def feed(self, data: memoryview) -> None:
        self._memory[self._filled : self._filled + len(data)] = np.frombuffer(data, np.uint8)
        self._filled += len(data)

    def fill(self, end: socket.socket) -> int:
        got = end.recv_into(self._memory[self._filled :].data)
        self._filled += got
        return got


class FrameReader:
    """body_for: gets a message and the length of its body, 0 if there is none; returns where the body goes.
    Raises Broken if the message may not have this body."""

    def __init__(self, body_for: Callable[[AnyMessage, int], Body | None]) -> None:
        self._body_for = body_for
        self._small = memoryview(bytearray(READ_AHEAD))
        self._start = self._end = 0  # begin and end of the bytes in _small that are not parsed yet
        self._message: AnyMessage | None = None  # the message whose body is being read
        self._body: Body | None = None

    def read(self, end: socket.socket) -> Iterator[tuple[AnyMessage, Body | None]]:
        """Reads once, and yields the frames that are complete. Raises EOFError if the stream has ended,
        Broken, OSError."""
        if self._body is not None:
            got = self._body.fill(end)
        else:
            self._make_room()
            got = end.recv_into(self._small[self._end :])
            self._end += got
        if not got:
            raise EOFError
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[AnyMessage, Body | None] | None:
        if self._message is None and not self._parse():
            return None
        assert self._message is not None
        if (body := self._body) is not None:
            if move := min(body.left, self._end - self._start):
                body.feed(self._small[self._start : self._start + move])
                self._start += move
            if body.left:
                return None
        message, self._message, self._body = self._message, None, None
        return message, body

    def _parse(self) -> bool:
        """Parses the next prefix and header. False if they have not arrived completely."""
        at, here = self._start, self._end - self._start
        if here < PREFIX.size:
            if self._small[at : min(self._end, at + 4)] != MAGIC[: min(here, 4)]:
                raise Broken("not a transfer frame")
            return False
        magic, length, body, crc, own = PREFIX.unpack_from(self._small, at)
        if magic != MAGIC or own != zlib.crc32(self._small[at : at + PREFIX.size - 4]):
            raise Broken("not a transfer frame, or a byte was corrupted on the way")
        if length > MOST_HEADER:
            raise Broken(f"the header has {length} bytes, more than {MOST_HEADER}")
        if here < PREFIX.size + length:
            return False
        header = self._small[at + PREFIX.size : at + PREFIX.size + length]
        if zlib.crc32(header) != crc:
            raise Broken("a byte of the header was corrupted on the way")
        try:
            self._message = _decoder.decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Broken(f"invalid header: {error}") from None
        self._body = self._body_for(self._message, body)
        self._start = at + PREFIX.size + length
        return True

    def _make_room(self) -> None:
        rest = self._end - self._start
        if self._start:
            self._small[:rest] = bytes(self._small[self._start : self._end])
            self._start, self._end = 0, rest
