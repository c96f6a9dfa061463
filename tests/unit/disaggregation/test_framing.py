"""What a frame says is what was sent, however it is cut; a changed byte is noticed."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.disaggregation.checksum import checksum
from nextn.disaggregation.framing import ArrayBody, Body, Broken, FrameReader, frame_start
from nextn.disaggregation.messages import Abort, AnyMessage, Done, Pages, Ping, Want

BODY = np.arange(9000, dtype=np.uint64).view(np.uint8)
FRAMES: list[tuple[AnyMessage, bytes]] = [
    (Ping(), b""),
    (Pages(3, 0, 1, 4, 77), BODY.tobytes()),
    (Done(3, 4, 1), b""),
    (Abort(4, "why"), b""),
    (Pages(5, 2, 1, 4, 77, 3), b"xyz"),
    (Want(1, (1 << 63) - 1, 3, b"hash"), b""),
]
STREAM = b"".join(frame_start(message, len(body)) + body for message, body in FRAMES)


def whole(body: Body | None) -> bytes:
    return b"" if body is None else body._memory.tobytes()  # type: ignore[attr-defined]


def read(stream: bytes, cuts: list[int]) -> list[tuple[Any, bytes]]:
    """What comes of it, part by part; raises Broken."""
    found: list[tuple[Any, bytes]] = []
    reader = FrameReader(lambda message, size: ArrayBody(np.empty(size, np.uint8)) if size else None)
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        at = 0
        for cut in [*sorted(cuts), len(stream)]:
            here.sendall(stream[at:cut])
            at = cut
            try:
                while True:
                    for message, body in reader.read(there):
                        found.append((message, whole(body)))
            except BlockingIOError:
                pass
    return found


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_that_is_cut_anywhere(cuts: list[int]) -> None:
    assert read(STREAM, cuts) == FRAMES


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_a_changed_byte_outside_of_pages(at: int, by: int) -> None:
    changed = STREAM[:at] + bytes([STREAM[at] ^ by]) + STREAM[at + 1 :]
    try:
        found = read(changed, [])
    except Broken:
        return
    assert [message for message, _ in found] == [message for message, _ in FRAMES]
    assert sum(body != right for (_, body), (_, right) in zip(found, FRAMES, strict=True)) == 1  # of pages


@given(st.binary(max_size=200))
def test_rubbish(data: bytes) -> None:
    if data[:4] != STREAM[: min(4, len(data))]:
        with pytest.raises(Broken):
            read(data, [])


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 20_000])
def test_a_checksum_sees_every_byte(size: int) -> None:
    data = np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8).copy()
    before = checksum(data)
    assert checksum(data.copy()) == before
    for at in {0, size // 3, size // 2, size - 1} - {-1}:
        if size:
            data[at] ^= 4
            assert checksum(data) != before
            data[at] ^= 4
