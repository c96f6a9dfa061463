"""A process of another rank: a fresh interpreter that runs a module of nextn. It imports nothing of the
program that starts it, so that scripts need no `if __name__ == "__main__"`, and notebooks work."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from nextn.distributed.shared import Memory

END_SECONDS = 2.0  # for a rank to end by itself; then it is killed


class RankProcess:
    """link: both ways, for pickled objects. sentinel: a descriptor that can be read when it has ended."""

    def __init__(self, module: str, memory: Memory) -> None:
        ours, theirs = socket.socketpair()
        self.sentinel, alive = os.pipe()
        kept = (theirs.fileno(), memory.file, alive)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(memory.file), str(os.getpid())],
            pass_fds=kept, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        theirs.close()  # or neither would ever be at its end
        os.close(alive)
        self.link = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._popen.pid

    def how_it_ended(self) -> str:
        """Waits for its end."""
        code = self._popen.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self._popen.kill()  # a stopped one too

    def close(self) -> None:
        self.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_SECONDS)
        if self._popen.poll() is None:
            self.kill()
            self._popen.wait()
        os.close(self.sentinel)


def opened(arguments: list[str]) -> tuple[Connection, Memory, int]:
    """In that process: the link, the memory, and the process that started it. arguments: its own."""
    link, file, parent = map(int, arguments)
    memory = Memory.__new__(Memory)
    memory.file = file
    return Connection(link), memory, parent
