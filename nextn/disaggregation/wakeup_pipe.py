"""A pipe with which any thread wakes another that waits for file descriptors."""

from __future__ import annotations

import contextlib
import os
import threading


class WakeupPipe:
    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._open, self._lock = True, threading.Lock()

    def fileno(self) -> int:
        """Readable from `wake` to `clear`."""
        return self._read

    def wake(self) -> None:
        """Makes `fileno` readable. Any thread may call it. After `close` it does nothing."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full: it is readable already
            if self._open:
                os.write(self._write, b"!")

    def clear(self) -> None:
        """Call it before looking for work: work that is added later wakes again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._read)
                os.close(self._write)
