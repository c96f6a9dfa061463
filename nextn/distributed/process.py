"""The process of another rank: a new interpreter that runs a module of nextn. It does not import the program
that starts it. So scripts need no `if __name__ == "__main__"`, and notebooks work."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from nextn.distributed.life import StopWatch, how_it_ended
from nextn.distributed.memory import Memory

END_SECONDS = 2.0  # for a rank to end by itself; then it is killed


class RankProcess:
    """link: both ways, for pickled objects. sentinel: a descriptor that is readable when it has ended. watch:
    whether it is stopped."""

    def __init__(self, module: str, memories: Sequence[Memory]) -> None:
        ours, theirs = socket.socketpair()
        self.sentinel, alive = os.pipe()
        files = [memory.file for memory in memories]
        numbers = [theirs.fileno(), os.getpid(), *files]
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, numbers)],
            pass_fds=[theirs.fileno(), alive, *files],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        theirs.close()  # otherwise neither end would notice that the other is closed
        os.close(alive)
        self.link = Connection(ours.detach())
        self.watch = StopWatch(self._popen.pid)

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


def opened(arguments: list[str]) -> tuple[Connection, list[Memory], int]:
    """To be called in the new process, with its arguments. Returns the link, the shared memories, and the id
    of the process that started it."""
    link, parent, *files = map(int, arguments)
    return Connection(link), [Memory(file) for file in files], parent
