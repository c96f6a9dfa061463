"""One TCP connection between a source and a sink. One thread reads it; any may send."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.framing import TAIL, Body, FrameReader, frame_start
from nextn.disaggregation.messages import MOST_TEXT, Abort, AnyMessage, Done, Hello, Pages, Ping

MOST_WAITING = 4096  # frames that the other end does not read


@dataclass(slots=True)
class _Frame:
    parts: list[memoryview]  # that are to be sent still
    transfer: int  # -1: of none
    charge: int  # bytes that are given back when it was sent
    begun: bool = False


class Connection:
    """body_for: see FrameReader. sent: is told the charge of each frame that went out or will not. lock: held
    while frames are looked at or sent, and while `sent` is called; whoever closes `end` holds it, too."""

    def __init__(
        self,
        end: socket.socket,
        name: str,
        body_for: Callable[[Connection, AnyMessage, int], Body | None],
        sent: Callable[[Connection, int], None],
        lock: threading.RLock,
    ) -> None:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end, self.name = end, name
        self.hello: Hello | None = None  # the other end's
        self.connecting = False
        self.closing = False  # when all was sent
        self.lost = False
        self.interest = 0  # of the selector
        self.born = self.heard = self.spoke = time.monotonic()
        self._reader = FrameReader(lambda message, size: body_for(self, message, size))
        self._sent, self._lock = sent, lock
        self._frames: deque[_Frame] = deque()

    def send(
        self,
        message: AnyMessage,
        body: NDArray[np.uint8] | None = None,
        charge: int = 0,
        checksum: int = 0,
    ) -> None:
        """checksum: of the body."""
        # What is in shared memory is small here, and its slot comes back when the other end has read it.
        transfer = -1
        if isinstance(message, Done) or (isinstance(message, Pages) and body is not None):
            transfer = message.transfer
        if body is None:
            parts = [memoryview(frame_start(message))]
        else:
            start = frame_start(message, len(body) + TAIL)
            parts = [memoryview(start), body.data, memoryview(checksum.to_bytes(TAIL, "big"))]
        self._append(_Frame(parts, transfer, charge))

    def send_rest(self, rest: memoryview, charge: int) -> None:
        """Of a frame that was begun when it was `clear`, with the lock held since then."""
        self.spoke = time.monotonic()
        if len(rest):
            self._append(_Frame([rest], -1, charge, begun=True))
        else:
            self._sent(self, charge)

    def _append(self, frame: _Frame) -> None:
        with self._lock:
            if self.lost or self.closing:
                self._sent(self, frame.charge)
            else:
                self._frames.append(frame)

    @property
    def clear(self) -> bool:
        """May a frame go into the socket at once?"""
        return not (self._frames or self.lost or self.closing or self.connecting)

    def drop(self, transfer: int, error: str) -> None:
        """Does not send what waits of a transfer, but for a frame of which a part went out; says that it
        ended."""
        with self._lock:
            keep, drop = deque[_Frame](), list[_Frame]()
            for frame in self._frames:
                (keep if frame.begun or frame.transfer != transfer else drop).append(frame)
            self._frames = keep
            for frame in drop:
                self._sent(self, frame.charge)
            self.send(Abort(transfer, error[:MOST_TEXT]))

    def flush(self) -> None:
        """Sends what the socket takes. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._flush_one():
                pass

    def _flush_one(self) -> bool:
        """Are there more? The lock is not held for longer: engines wait for it."""
        with self._lock:
            if not self._frames or self.lost:
                return False
            frame = self._frames[0]
            n = self.end.sendmsg(frame.parts)
            self.spoke, frame.begun = time.monotonic(), True
            while frame.parts and n >= len(frame.parts[0]):
                n -= len(frame.parts.pop(0))
            if frame.parts:
                frame.parts[0] = frame.parts[0][n:]
            else:
                self._frames.popleft()
                self._sent(self, frame.charge)
            return bool(self._frames)

    def read(self) -> Iterator[tuple[AnyMessage, Body | None]]:
        """Reads once; to be gone through to its end, or the connection is lost. Raises BlockingIOError,
        EOFError, OSError, Broken."""
        yield from self._reader.read(self.end)
        self.heard = time.monotonic()

    def finish_connect(self) -> None:
        """Raises OSError."""
        error = self.end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self.connecting = False

    @property
    def waiting(self) -> bool:
        """For the socket to take more."""
        return self.connecting or bool(self._frames)

    def check(self, now: float, timeout: float, listening: bool) -> str | None:
        """Says Ping when it is time, and returns why the connection is of no more use, or None. listening:
        whether the other end is read at all."""
        if len(self._frames) > MOST_WAITING:
            return "the other end does not read"
        if not listening:
            self.heard = self.born = now
        if self.hello is None and now - self.born > timeout:
            return f"no answer for {timeout:g} s"
        if now - self.heard > timeout:
            return f"silent for {timeout:g} s"
        if self.hello is not None:
            timeout = min(timeout, self.hello.timeout)
            if now - self.spoke > timeout / 4 and not self._frames:
                self.send(Ping())
        return None
