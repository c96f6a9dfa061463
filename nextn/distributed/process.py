"""A process of another rank: a fresh interpreter that runs a module of nextn. It imports nothing of the
program that starts it, so that scripts need no `if __name__ == "__main__"`, and notebooks work."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from nextn.distributed.life import how_it_ended
from nextn.distributed.memory import Memory

END_SECONDS = 2.0  # for a rank to end by itself; then it is killed


class RankProcess:
    """link: both ways, for pickled objects. sentinel: a descriptor that can be read when it has ended."""

    def __init__(self, module: str, memory: Memory | None) -> None:
        ours, theirs = socket.socketpair()
        self.sentinel, alive = os.pipe()
        file = -1 if memory is None else memory.file
        kept = [end for end in (theirs.fileno(), file, alive) if end >= 0]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(file), str(os.getpid())],
            pass_fds=kept, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        theirs.close()  # or neither would ever be at its end
        os.close(alive)
        self.link = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def code(self) -> int:
        """Its exit code, negative for a signal. Waits for its end."""
        return self._popen.wait()

    def how_it_ended(self) -> str:
        """Waits for its end."""
        return how_it_ended(self.code())

    def kill(self) -> None:
        self._popen.kill()  # a stopped one too

    def close(self) -> None:
        self.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_SECONDS)
        if not self.ended:
            self.kill()
            self.code()
        os.close(self.sentinel)


def opened(arguments: list[str]) -> tuple[Connection, Memory | None, int]:
    """In that process: the link, the memory if it shares one, and the process that started it. arguments: its
    own."""
    link, file, parent = map(int, arguments)
    return Connection(link), Memory(file) if file >= 0 else None, parent
