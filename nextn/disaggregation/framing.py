"""Frames on a stream: a prefix, a header that is a message in MessagePack, and the bytes of pages, if any.

The prefix holds both lengths, the header's checksum and its own, so that a changed length is noticed at once
and not after a wait for bytes that never come. The checksum of the pages is in their header.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.messages import AnyMessage

MAGIC = b"nxKV"
PREFIX = struct.Struct("<4sIIII")  # magic, bytes of the header, bytes of the body, checksums: header, prefix
MOST_HEADER = 16 << 10
AHEAD = 4096  # bytes of the next frame that are read with a body's end

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class Broken(Exception):
    """What came is not what this protocol allows; the connection is of no more use."""


def frame_start(message: AnyMessage, body: int = 0) -> bytes:
    """All of a frame but its body of so many bytes."""
    header = _encoder.encode(message)
    start = PREFIX.pack(MAGIC, len(header), body, zlib.crc32(header), 0)[:-4]
    return b"".join((start, struct.pack("<I", zlib.crc32(start)), header))


class FrameReader:
    """body_for: says where the body of a message goes, given its length, which may be 0; raises Broken for
    one that may not be."""

    def __init__(self, body_for: Callable[[AnyMessage, int], NDArray[np.uint8] | None]) -> None:
        self._body_for = body_for
        self._small = memoryview(bytearray(MOST_HEADER + 2 * AHEAD))
        self._start = self._end = 0  # of what is in _small and not yet looked at
        self._message: AnyMessage | None = None  # whose body is being read
        self._body: NDArray[np.uint8] | None = None
        self._filled = 0

    def read(self, end: socket.socket) -> Iterator[tuple[AnyMessage, NDArray[np.uint8] | None]]:
        """Reads once, and yields the frames that are then complete. Raises EOFError at the end, Broken,
        OSError."""
        if self._message is None:
            self._make_room()
            got = end.recv_into(self._small[self._end :])
            self._end += got
        else:
            assert self._body is not None
            rest = len(self._body) - self._filled
            got = end.recvmsg_into([self._body[self._filled :].data, self._small[:AHEAD]])[0]
            self._filled += min(got, rest)
            self._start, self._end = 0, max(0, got - rest)
        if not got:
            raise EOFError
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[AnyMessage, NDArray[np.uint8] | None] | None:
        if self._message is None and not self._parse():
            return None
        assert self._message is not None
        body = self._body
        if body is not None:
            move = min(len(body) - self._filled, self._end - self._start)
            if move:
                body[self._filled : self._filled + move] = self._small[self._start : self._start + move]
                self._start, self._filled = self._start + move, self._filled + move
            if self._filled < len(body):
                return None
        message, self._message, self._body = self._message, None, None
        return message, body

    def _parse(self) -> bool:
        """The next message, if it is here whole."""
        at, here = self._start, self._end - self._start
        if here < PREFIX.size:
            if self._small[at : min(self._end, at + 4)] != MAGIC[: min(here, 4)]:
                raise Broken("these are no frames")
            return False
        magic, length, body, crc, own = PREFIX.unpack_from(self._small, at)
        if magic != MAGIC or own != zlib.crc32(self._small[at : at + PREFIX.size - 4]):
            raise Broken("these are no frames, or a byte was changed on the way")
        if length > MOST_HEADER:
            raise Broken(f"a header of {length} bytes")
        if here < PREFIX.size + length:
            return False
        header = self._small[at + PREFIX.size : at + PREFIX.size + length]
        if zlib.crc32(header) != crc:
            raise Broken("a byte was changed on the way")
        try:
            self._message = _decoder.decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Broken(f"a header that says nothing: {error}") from None
        self._body, self._filled = self._body_for(self._message, body), 0
        self._start = at + PREFIX.size + length
        return True

    def _make_room(self) -> None:
        rest = self._end - self._start
        if self._start:
            self._small[:rest] = bytes(self._small[self._start : self._end])
            self._start, self._end = 0, rest
