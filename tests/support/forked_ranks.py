"""Processes of ranks, forked from one process that has imported everything: a new interpreter takes four
seconds of CPU time to import torch. They run as usual, except that none ends the process that started it.

with watched_ranks() as watches:
    ...
    watches.check(ranks, halves=True, moves=True)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import pytest
from support.watched_steps import Watches, watch

from nextn.distributed import process
from nextn.distributed.life import StopWatch, die_with_parent, how_it_ended
from nextn.distributed.memory import Memory
from nextn.distributed.process import END_SECONDS, RANK, send_memories
from nextn.engine import gang, tensor_rank

FORK, CODE = b"f", b"c"
MOST_FILES = 8


@contextlib.contextmanager
def watched_ranks() -> Iterator[Watches]:
    """Within it, all ranks are watched (`support.watched_steps`), and their processes are forked."""
    with contextlib.closing(Memory()) as memory, pytest.MonkeyPatch.context() as patch:
        watch(memory, patch.setattr)
        with contextlib.closing(Nursery(memory)) as nursery:
            patch.setattr(gang, "RankProcess", nursery.rank)
            yield Watches(memory)


class Nursery:
    """The process that ranks are forked from. It begins with the first of them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair()
        numbers = theirs.fileno(), self._memory.file
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forked_ranks", *map(str, numbers)],
            pass_fds=numbers,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        theirs.close()
        self._link = Connection(os.dup(self._socket.fileno()))

    def rank(self, module: str, memories: Sequence[Memory]) -> ForkedRank:
        """See `nextn.distributed.process.RankProcess`."""
        assert module == RANK
        ours, theirs = socket.socketpair()
        sentinel, alive = os.pipe()
        with self._lock:
            if self._process is None:
                self._begin()
            socket.send_fds(self._socket, [FORK], [alive, theirs.fileno()])
            pid: int = self._link.recv()
        theirs.close()
        os.close(alive)
        send_memories(ours, memories)
        return ForkedRank(self, pid, Connection(ours.detach()), sentinel)

    def code(self, pid: int) -> int:
        """The exit code of a rank that has ended. To be called once."""
        with self._lock:
            self._socket.sendall(CODE)
            self._link.send(pid)
            found: int = self._link.recv()
        return found

    def close(self) -> None:
        if self._process is not None:
            self._link.close()
            self._socket.close()
            self._process.wait()


class ForkedRank:
    """See `nextn.distributed.process.RankProcess`."""

    def __init__(self, nursery: Nursery, pid: int, link: Connection, sentinel: int) -> None:
        self._nursery, self.pid, self.link, self.sentinel = nursery, pid, link, sentinel
        self.watch = StopWatch(pid)
        self._code: int | None = None

    @property
    def ended(self) -> bool:
        return self._ends(0)

    def _ends(self, seconds: float | None) -> bool:
        return self._code is not None or bool(select.select([self.sentinel], [], [], seconds)[0])

    def code(self) -> int:
        self._ends(None)
        if self._code is None:
            self._code = self._nursery.code(self.pid)
        return self._code

    def how_it_ended(self) -> str:
        return how_it_ended(self.code())

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.link.close()
        if not self._ends(END_SECONDS):
            self.kill()
        self.code()
        os.close(self.sentinel)


def main(listen: int, memory: int) -> None:
    """Forks ranks until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock, link = socket.socket(fileno=listen), Connection(os.dup(listen))
    while True:
        asked, files, *_ = socket.recv_fds(sock, 1, MOST_FILES)
        if not asked:
            return
        if asked == CODE:
            _, status = os.waitpid(link.recv(), 0)
            link.send(os.waitstatus_to_exitcode(status))
            continue
        pid, own = os.getpid(), os.fork()
        if not own:
            sock.close()
            link.close()
            _run(files, Memory(memory), pid)
        for file in files:
            os.close(file)
        link.send(own)


def _run(files: Sequence[int], memory: Memory, parent: int) -> None:
    """files: a pipe that tells when the rank has ended, and its link."""
    code = 1
    try:
        die_with_parent(parent)
        process.die_with_parent = lambda parent: None
        watch(memory, setattr)
        _alive, link = files
        code = tensor_rank.main([str(link), "0"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
