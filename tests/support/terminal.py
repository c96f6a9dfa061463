"""Runs a command in a terminal of a given size, reads what it shows, and types.

with Terminal(["top", "--base-url", url], rows=30, columns=100) as terminal:
    terminal.see("requests")
    terminal.type("q")
    assert terminal.wait() == 0
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.text import Text

OF_OTHER_TERMINALS = {"NO_COLOR", "COLUMNS", "LINES"}
WHERE_IS_THE_CURSOR, AT_THE_TOP = b"\x1b[6n", b"\x1b[1;1R"


class Terminal:
    """Runs `nextn` with these words. `shown` has everything that it has shown."""

    def __init__(
        self,
        words: Sequence[str],
        rows: int = 30,
        columns: int = 100,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(rows, columns)
        kept = {name: value for name, value in os.environ.items() if name not in OF_OTHER_TERMINALS}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nextn", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
            env={**kept, "TERM": "xterm-256color", **(environment or {})},
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""
        self._seen = 0  # bytes up to the end of the last text that `see` found

    def see(self, text: str, seconds: float = 30) -> None:
        """Waits until the terminal shows the text, after the texts that were waited for before."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text.encode(), self._seen)) < 0:
            assert time.monotonic() < deadline, (text, self.shown[-500:])
            assert self._read(0.1), (text, self.shown[-500:])
        self._seen = at + len(text.encode())

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait(self, seconds: float = 30) -> int:
        """Returns the exit code, after all output has been read."""
        deadline = time.monotonic() + seconds
        while self._read(0.1) and self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown[-500:]
        while select.select([self._ours], [], [], 0)[0] and self._read(0):
            pass
        return self.process.wait(seconds)

    def text(self) -> str:
        """All that has been shown, without colours."""
        return Text.from_ansi(self.shown.decode(errors="replace").replace("\r\n", "\n")).plain

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, seconds: float) -> bool:
        """Reads the output so far. False at the end."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            new = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.shown += new
        if WHERE_IS_THE_CURSOR in new:
            os.write(self._ours, AT_THE_TOP)
        return bool(new)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
