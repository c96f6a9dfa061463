"""One TCP connection between a source and a sink. One thread reads from it; any thread may send."""

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

MOST_WAITING = 4096  # frames in the queue, before the connection counts as dead


@dataclass(slots=True)
class _Frame:
    parts: list[memoryview]  # not sent yet
    transfer: int  # -1: belongs to no transfer
    charge: int  # bytes in flight, which `sent` gets when the frame was sent or dropped
    begun: bool = False


class Connection:
    """body_for: see FrameReader. sent: called with the charge of each frame that was sent or will never be
    sent. lock: held while frames are queued or sent, and while `sent` is called. Hold it also to close
    `end`."""

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
        self.hello: Hello | None = None  # from the other end
        self.connecting = False
        self.closing = False  # close it when all frames are sent
        self.lost = False
        self.interest = 0  # events that the selector waits for
        self.opened = self.last_received = self.last_sent = time.monotonic()
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
        """Queues a message, and its body if there is one. checksum: of the body."""
        # Only frames with a body or Done can be dropped with their transfer. A Pages message without a body
        # is small, and it must arrive: the other end gives its slot back only after it.
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
        """Queues the rest of a frame whose beginning was sent while `clear` was true. The caller has held the
        lock since then."""
        self.last_sent = time.monotonic()
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
        """Whether a frame may be written to the socket at once."""
        return not (self._frames or self.lost or self.closing or self.connecting)

    def drop(self, transfer: int, error: str) -> None:
        """Drops the queued frames of a transfer, except a frame that is partly sent. Tells the other end that
        the transfer ended."""
        with self._lock:
            keep, drop = deque[_Frame](), list[_Frame]()
            for frame in self._frames:
                (keep if frame.begun or frame.transfer != transfer else drop).append(frame)
            self._frames = keep
            for frame in drop:
                self._sent(self, frame.charge)
            self.send(Abort(transfer, error[:MOST_TEXT]))

    def flush(self) -> None:
        """Sends as much as the socket takes. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._flush_one():
                pass

    def _flush_one(self) -> bool:
        """Sends from the first frame; returns whether more remain. The lock is held for one call of sendmsg
        only: engines wait for it."""
        with self._lock:
            if not self._frames or self.lost:
                return False
            frame = self._frames[0]
            n = self.end.sendmsg(frame.parts)
            self.last_sent, frame.begun = time.monotonic(), True
            while frame.parts and n >= len(frame.parts[0]):
                n -= len(frame.parts.pop(0))
            if frame.parts:
                frame.parts[0] = frame.parts[0][n:]
            else:
                self._frames.popleft()
                self._sent(self, frame.charge)
            return bool(self._frames)

    def read(self) -> Iterator[tuple[AnyMessage, Body | None]]:
        """Reads once, and yields complete frames. The caller must exhaust the iterator or drop the
        connection. Raises BlockingIOError, EOFError, OSError, Broken."""
        yield from self._reader.read(self.end)
        self.last_received = time.monotonic()

    def finish_connect(self) -> None:
        """Raises OSError."""
        error = self.end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self.connecting = False

    @property
    def waiting(self) -> bool:
        """Whether to wait until the socket takes more."""
        return self.connecting or bool(self._frames)

    def check(self, now: float, timeout: float, listening: bool) -> str | None:
        """Sends Ping if one is due. Returns why the connection is dead, or None. listening: whether this end
        reads from its connections at the moment."""
        if len(self._frames) > MOST_WAITING:
            return "the other server does not read"
        if not listening:
            self.last_received = self.opened = now
        if self.hello is None and now - self.opened > timeout:
            return f"no answer for {timeout:g} s"
        if now - self.last_received > timeout:
            return f"silent for {timeout:g} s"
        if self.hello is not None:
            timeout = min(timeout, self.hello.timeout)
            if now - self.last_sent > timeout / 4 and not self._frames:
                self.send(Ping())
        return None
