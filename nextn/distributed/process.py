"""The process of another rank: a new interpreter that runs a module of nextn. It does not import the program
that starts it. So scripts need no `if __name__ == "__main__"`, and notebooks work.

`start_early` starts processes before it is known what they are for. They import torch while this one does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from nextn.distributed.life import StopWatch, die_with_parent, how_it_ended
from nextn.distributed.memory import Memory

RANK = "nextn.engine.tensor_rank"  # the module that a rank's process runs
END_SECONDS = 2.0  # for a rank to end by itself; then it is killed
MEMORIES = b"m"  # a message with the descriptors of shared memories
MOST_MEMORIES = 4

_early: list[_Interpreter] = []


class _Interpreter:
    def __init__(self, module: str) -> None:
        self.module = module
        self.link, theirs = socket.socketpair()
        self.sentinel, alive = os.pipe()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno(), alive],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        theirs.close()  # otherwise neither end would notice that the other is closed
        os.close(alive)


def start_early(module: str, count: int) -> None:
    """The next `count` objects of RankProcess take these processes."""
    _early.extend(_Interpreter(module) for _ in range(count))


class RankProcess:
    """link: both ways, for pickled objects. sentinel: a descriptor that is readable when it has ended. watch:
    whether it is stopped."""

    def __init__(self, module: str, memories: Sequence[Memory]) -> None:
        early = next((each for each in _early if each.module == module), None)
        if early is not None:
            _early.remove(early)
        process = early or _Interpreter(module)
        self.sentinel, self._popen = process.sentinel, process.popen
        send_memories(process.link, memories)
        self.link = Connection(process.link.detach())
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


def send_memories(link: socket.socket, memories: Sequence[Memory]) -> None:
    with contextlib.suppress(ConnectionError):  # it has ended, which its sentinel tells
        socket.send_fds(link, [MEMORIES], [memory.file for memory in memories])


def opened(arguments: Sequence[str]) -> tuple[Connection, list[Memory], int]:
    """To be called in the new process, with its arguments. Returns the link, the shared memories, and the id
    of the process that started it. Raises EOFError if that process no longer needs this one."""
    number, parent = map(int, arguments)
    die_with_parent(parent)
    link = Connection(number)
    with socket.socket(fileno=os.dup(number)) as end:
        message, files, *_ = socket.recv_fds(end, len(MEMORIES), MOST_MEMORIES)
    if not message:
        raise EOFError
    return link, [Memory(file) for file in files], parent
