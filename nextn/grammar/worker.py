"""Processes that try clients' input. They may crash on it without harm.

`nextn.grammar.workers` starts a parent, which loads a library once and never reads a client's input. The
parent forks children, which have the library, and limits that the kernel enforces. A child that dies is
replaced within a few milliseconds, even if the library loads slowly.

For each child, the control socket brings one end of a socket pair. The child takes jobs from it, one after
the other, and the parent reports how the child ended. When the other end is closed, the parent kills the
child. When the control socket is closed, the parent kills all children and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from nextn.grammar.follower import PID, follow
from nextn.grammar.limits import MIB, Limits, resident, statm

if TYPE_CHECKING:
    from nextn.constraint import CompiledGrammar

PR_SET_PDEATHSIG = 1
# After LONG_SECONDS on a job, a child continues at a lower priority. It is not much lower, because the child
# must also finish on a busy machine.
LONG_SECONDS, NICE = 0.05, 5
MAX_GROWTH = 32 * MIB  # a child whose memory grew this much gets no further job
SEEN = MIB // 4  # growth from which on memory is trimmed before it is measured
# Does a job: returns the text of the answer, and an object that stays alive while its memory is measured.
Try = Callable[[Mapping[str, Any]], tuple[str, object]]


def main(control: int, factory: str, options: Mapping[str, Any], limits: Limits) -> NoReturn:
    """factory: "module:function"; called with the options, it makes a `Try`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the server, which ends this process
        signal.signal(number, signal.SIG_IGN)
    module, _, name = factory.partition(":")
    try:
        attempt: Try = getattr(importlib.import_module(module), name)(options)
    except (ValueError, OSError) as e:  # for example a tokenizer that cannot be read
        sys.exit(f"the grammar worker cannot start: {e}")
    Parent(socket.socket(fileno=control), attempt, limits).run()


class Parent:
    def __init__(self, control: socket.socket, attempt: Try, limits: Limits) -> None:
        self.control, self.attempt, self.limits = control, attempt, limits
        self.children: dict[int, tuple[int, socket.socket]] = {}  # file number -> (pid, the child's end)

    def run(self) -> NoReturn:
        ended, wake = socket.socketpair()
        for end in (ended, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self.control.fileno():
                    data, numbers, _, _ = socket.recv_fds(self.control, 1, 1)
                    if not data:
                        self._end()
                    if not numbers:  # this process has too many files open
                        continue
                    link = socket.socket(fileno=numbers[0])
                    try:
                        pid = self._fork(link, ended, wake)
                    except OSError:  # the system has too many processes
                        link.close()
                        continue
                    self.children[link.fileno()] = pid, link
                    poll.register(link, 0)  # only reports that the other end is closed
                elif number == ended.fileno():
                    ended.recv(4096)
                elif number in self.children:
                    os.kill(self.children[number][0], signal.SIGKILL)
                    poll.unregister(number)
            for number in [number for number in self.children if self._has_ended(number)]:
                with contextlib.suppress(KeyError):  # it was killed and is unregistered already
                    poll.unregister(number)
                self.children.pop(number)[1].close()

    def _fork(self, link: socket.socket, *others: socket.socket) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self.control, *others, *(link for _, link in self.children.values())):
                other.close()
            Child(link, self.attempt, self.limits).run()
        finally:
            os._exit(1)

    def _has_ended(self, number: int) -> bool:
        pid, link = self.children[number]
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # the other end is closed
                link.send(json.dumps({"code": code}).encode() + b"\n", socket.MSG_DONTWAIT)
        return bool(ended)

    def _end(self) -> NoReturn:
        for pid, _ in self.children.values():
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


class Child:
    def __init__(self, link: socket.socket, attempt: Try, limits: Limits) -> None:
        self.link, self.attempt, self.limits = link, attempt, limits
        self.nice = False

    def run(self) -> NoReturn:
        """Serves jobs. Each job is a line of JSON. The answer begins with an empty line at once, from which
        the time limit runs. Then follows a line of JSON, {"error"} or {"bytes", "length"}, with "last" if the
        child takes no further job; then the text of that length. A job with "follow" has passed its trial:
        the child compiles it, answers with its process id, and follows its texts. It gets no other job."""
        self._restrict()
        self._try({})  # touch memory shared with the parent, so that the copies are not counted as growth
        before = resident()
        with self.link.makefile("rb") as jobs:
            for line in jobs:
                asked = json.loads(line)
                if "follow" in asked:
                    self._follow(asked, jobs)
                self.link.sendall(b"\n")
                self._limit_seconds()
                timer = threading.Timer(LONG_SECONDS, self._make_way)
                timer.start()
                answer, text = self._try(asked)
                timer.cancel()
                if resident() - before > SEEN:
                    trim()
                if self.nice or resident() - before > MAX_GROWTH:
                    answer["last"] = True
                self.link.sendall(json.dumps(answer).encode() + b"\n" + text)
        os._exit(0)

    def _follow(self, asked: Mapping[str, Any], jobs: BinaryIO) -> NoReturn:
        _, compiled = self.attempt(asked)
        self.link.sendall(PID.pack(os.getpid()))
        follow(self.link, jobs, cast("CompiledGrammar", compiled), self.limits)

    def _try(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        before = resident()
        try:
            text, _keep = self.attempt(asked)
            if resident() - before > SEEN:
                trim()
            data = text.encode()
            return {"bytes": max(0, resident() - before), "length": len(data)}, data
        except BaseException as e:  # Rust's panics are not Exceptions
            if isinstance(e, MemoryError) or "std::bad_alloc" in str(e):
                return {"error": self.limits.too_large_to_compile}, b""
            if isinstance(e, ValueError):
                return {"error": str(e)}, b""
            return {"error": f"the library failed on it: {e}"}, b""

    def _restrict(self) -> None:
        """Sets limits, and closes stdin, stdout and stderr: a client's input could make a library write
        there."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        data = statm(5)
        if data:
            most = data + self.limits.peak + MAX_GROWTH
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def _make_way(self) -> None:
        self.nice = True  # permanent: only root could raise the priority again
        os.setpriority(os.PRIO_PROCESS, os.getpid(), NICE)  # the main thread's

    def _limit_seconds(self) -> None:
        """Limits the CPU seconds from now on."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(used.ru_utime + used.ru_stime + self.limits.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def trim() -> None:
    """Returns freed memory to the system, if the C library can do so. Otherwise it would be counted."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
