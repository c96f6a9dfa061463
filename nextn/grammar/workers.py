"""Tries clients' input in separate processes (`nextn.grammar.worker`), a few at a time.

One thread starts the processes, gives them jobs, and kills those that take too long or whose job was
cancelled. `submit` never waits.

Slow jobs within the limits must not occupy all processes while others wait. So if another source waits, one
slow job continues. Other slow jobs are stopped and start again later, one at a time. Further jobs of the same
source wait with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from nextn.grammar.fair_queue import FairQueue, Source
from nextn.grammar.limits import MIB, Busy, Limits

log = logging.getLogger("nextn.grammar")

AT_ONCE = 2  # processes; while one job is slow, the other process takes the rest
LONG_SECONDS = 0.25  # a job may delay others this long; ordinary jobs take at most 20 ms
ANSWER = 16 * MIB  # bytes; a prepared constraint is a few times as long as its text
BUSY = "too many constraints wait to be compiled; try again later"
START_SECONDS = 60.0  # time for a process to load its library
# As with multiprocessing's spawn, the others can import the same modules as this process.
RUN = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from nextn.grammar.limits import Limits; from nextn.grammar.worker import main; "
    "main(a['control'], a['factory'], a['options'], Limits(**a['limits']))"
)


class Tried(NamedTuple):
    """The result of a job: its text, and the bytes of memory that it keeps in use."""

    text: str
    bytes: int


@dataclass(eq=False)
class Job:
    """long: it was slow while others waited."""

    asked: bytes  # one line of JSON
    source: Source
    done: Future[Tried] = field(default_factory=Future)
    long: bool = False


@dataclass(eq=False)
class Child:
    """A child process, known by its link. It is idle if it has no job."""

    link: socket.socket
    job: Job | None = None
    unsent: bytes = b""
    heard: bytearray = field(default_factory=bytearray)
    began: float = 0.0  # when its job began; valid once `heard` is not empty
    deadline: float = 0.0  # of its job, monotonic


class Workers:
    """Runs jobs in processes. The first job or `start` starts them. Thread-safe."""

    def __init__(self, factory: str, options: Mapping[str, Any], limits: Limits) -> None:
        """factory, options: see `worker.main`."""
        self.factory, self.options, self.limits = factory, options, limits
        self._lock = threading.RLock()  # settling a job calls callbacks, which may take the lock again
        self._queue: FairQueue[Job] = FairQueue()
        self._later: FairQueue[Job] = FairQueue()  # slow jobs, and other jobs of their sources
        self._cancelled: list[Job] = []
        self._closed = False
        self._wake: socket.socket | None = None  # set while the thread runs
        # Only the thread uses these:
        self._selector: selectors.BaseSelector
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket
        self._children: list[Child] = []
        self._failed = False  # the parent has ended; the next job starts another

    @property
    def pid(self) -> int | None:
        """The parent's process id; None before it has started."""
        return None if self._parent is None else self._parent.pid

    def start(self) -> None:
        """Prepares for the first job in the background."""
        with self._lock:
            self._running()

    def submit(self, asked: Mapping[str, Any], source: Source) -> Future[Tried]:
        """Queues a job. The future raises ValueError for invalid input, and Busy if the job was removed to
        make room. Cancelling the future cancels the job. Raises Busy if there is no room."""
        job = Job(json.dumps(asked).encode() + b"\n", source)
        with self._lock:
            slow = source == self._slow or self._later.waits(source)
            out = (self._later if slow else self._queue).put(source, job, len(job.asked))
            wake = self._running()
        mine = weakref.ref(job)  # no reference cycle, so both are freed at once
        job.done.add_done_callback(lambda done: self._cancel(mine()) if done.cancelled() else None)
        for each in out:
            settle(each, Busy(BUSY))
        poke(wake)
        return job.done

    def child(self) -> socket.socket:
        """Starts another child for the caller, and returns the link to it. Raises OSError if that is not
        possible, for example before the first job has ended."""
        link, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except BaseException:
                link.close()
                raise
        return link

    def close(self) -> None:
        """Ends the processes. Nothing may be submitted afterwards."""
        with self._lock:
            self._closed = True
            wake, self._wake = self._wake, None
        if wake is not None:
            with wake:
                poke(wake)

    def _cancel(self, job: Job | None) -> None:
        if job is None:
            return
        with self._lock:
            if not (self._queue.remove(job) or self._later.remove(job)):
                self._cancelled.append(job)
            wake = self._wake
        if wake is not None:
            poke(wake)

    def _running(self) -> socket.socket:
        if self._wake is None:
            assert not self._closed
            woken, self._wake = socket.socketpair()
            for end in (woken, self._wake):
                end.setblocking(False)
            threading.Thread(target=self._run, args=(woken,), name="grammar-workers", daemon=True).start()
        return self._wake

    def _run(self, woken: socket.socket) -> None:
        with woken, selectors.DefaultSelector() as self._selector:
            self._selector.register(woken, selectors.EVENT_READ)
            while not self._closed:
                self._fill()
                for key, events in self._selector.select(self._time_left()):
                    if key.fileobj is woken:
                        with contextlib.suppress(BlockingIOError):
                            woken.recv(4096)
                    elif key.data is None:
                        self._lost()
                    elif key.data in self._children:
                        self._go_on(key.data, events)
                self._end_some()
                self._make_way()
            for child in list(self._children):
                self._end(child)
                if child.job is not None:
                    settle(child.job, ValueError("it was not compiled, because the server is stopping"))
            if self._parent is not None:
                self._control.close()
                self._parent.wait()

    def _time_left(self) -> float | None:
        deadlines = [child.deadline for child in self._children if child.job is not None]
        with self._lock:
            deadlines += [child.began + LONG_SECONDS for child in self._children if self._holds_up(child)]
        return max(0.0, min(deadlines) - monotonic()) if deadlines else None

    def _fill(self) -> None:
        """Starts missing children and gives jobs to idle ones."""
        if self._parent is None:
            with self._lock:
                if self._failed and not (self._queue or self._later):
                    return
            self._start_parent()
        while len(self._children) < AT_ONCE:
            self._start_child()
        for child in self._children:
            if child.job is not None:
                continue
            with self._lock:
                job = self._next()
            if job is None:
                return
            if not job.done.cancelled():
                child.job, child.unsent = job, job.asked
                child.deadline = monotonic() + START_SECONDS
                self._selector.modify(child.link, selectors.EVENT_READ | selectors.EVENT_WRITE, child)

    def _next(self) -> Job | None:
        """Takes the next job. The lock is held."""
        if self._queue:
            return self._queue.take()
        if not self._later or self._slow is not None:
            return None
        job = self._later.take()
        job.long = True
        return job

    @property
    def _slow(self) -> Source | None:
        """The source whose slow job runs."""
        jobs = [child.job for child in self._children]
        return next((job.source for job in jobs if job is not None and job.long), None)

    def _put_off(self, job: Job) -> None:
        """Moves a job to the later queue. The lock is held."""
        try:
            out = self._later.put(job.source, job, len(job.asked))
        except Busy as e:
            settle(job, e)
        else:
            for each in out:
                settle(each, Busy(BUSY))

    def _holds_up(self, child: Child) -> bool:
        """Whether this child's job delays others that wait. The lock is held."""
        job = child.job
        return bool(child.heard) and job is not None and not job.long and self._queue.others_wait(job.source)

    def _make_way(self) -> None:
        """Stops slow jobs while others wait, except one. The stopped jobs start again later."""
        now = monotonic()
        for child in list(self._children):
            with self._lock:
                if not self._holds_up(child) or now < child.began + LONG_SECONDS:
                    continue
                job = child.job
                assert job is not None
                if self._slow is not None:
                    self._end(child)
                    self._put_off(job)
                job.long = True
                for other in self._queue.take_all(job.source):
                    self._put_off(other)

    def _go_on(self, child: Child, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                child.unsent = child.unsent[child.link.send(child.unsent) :]
                if not child.unsent:
                    self._selector.modify(child.link, selectors.EVENT_READ, child)
            if not events & selectors.EVENT_READ:
                return
            data = child.link.recv(2**18)
        except BlockingIOError:
            return
        except OSError:  # the child ended before it read its whole job
            data = b""
        job = child.job
        if data and not child.heard:
            child.began = monotonic()
            child.deadline = child.began + self.limits.seconds
        child.heard += data
        answer, text = self._answer(child)
        if not data or job is None or len(child.heard) > ANSWER:
            self._end(child)
            if job is not None and len(child.heard) > ANSWER:
                settle(job, ValueError(self.limits.too_large))
            elif job is not None:
                settle(job, ValueError(how_it_ended(answer.get("code"), self.limits)))
        elif "error" in answer or len(text) == answer.get("length"):
            child.job = None
            child.heard.clear()
            if "last" in answer:
                self._end(child)
            if "error" in answer:
                settle(job, ValueError(answer["error"]))
            else:
                settle(job, Tried(text.decode(), answer["bytes"]))

    @staticmethod
    def _answer(child: Child) -> tuple[dict[str, Any], bytes]:
        """Reads the part of an answer that has arrived."""
        lines = bytes(child.heard).lstrip(b"\n").split(b"\n", 1)
        if len(lines) < 2:
            return {}, b""
        return json.loads(lines[0]), lines[1]

    def _end_some(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
        now = monotonic()
        for child in list(self._children):
            job = child.job
            if job is not None and (job in cancelled or child.deadline <= now):
                started = bool(child.heard)
                self._end(child)
                settle(
                    job, ValueError(self.limits.too_slow if started else "the grammar worker does not start")
                )

    def _start_child(self) -> None:
        try:
            link = self.child()
        except OSError:  # the parent has ended; `_lost` deals with that
            link, theirs = socket.socketpair()
            theirs.close()
        link.setblocking(False)
        child = Child(link)
        self._children.append(child)
        self._selector.register(link, selectors.EVENT_READ, child)

    def _end(self, child: Child) -> None:
        """Ends a child: the parent kills a child whose link is closed."""
        self._children.remove(child)
        self._selector.unregister(child.link)
        child.link.close()

    def _start_parent(self) -> None:
        self._control, theirs = socket.socketpair()
        options = {
            "path": sys.path, "control": theirs.fileno(), "factory": self.factory, "options": self.options,
            "limits": dataclasses.asdict(self.limits),
        }  # fmt: skip
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", RUN, json.dumps(options)], stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Threads do not survive a fork, and the libraries have no use for them here.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            )  # fmt: skip
        self._selector.register(self._control, selectors.EVENT_READ)

    def _lost(self) -> None:
        """Called when the parent has ended. No job can cause that."""
        assert self._parent is not None
        self._selector.unregister(self._control)
        self._control.close()
        log.error("the grammar worker ended (exit code %s)", self._parent.wait())
        self._parent, self._failed = None, True
        for child in list(self._children):
            self._end(child)
            if child.job is not None:
                settle(
                    child.job,
                    ValueError("the grammar worker ended while it compiled this; see the server's log"),
                )


def poke(wake: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the thread is awake or has ended
        wake.send(b"w")


def settle(job: Job, how: Tried | ValueError) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled
        if isinstance(how, ValueError):
            job.done.set_exception(how)
        else:
            job.done.set_result(how)


def how_it_ended(code: int | None, limits: Limits) -> str:
    """The error message for a child that ended without an answer."""
    if code in (-signal.SIGSEGV, -signal.SIGBUS):
        return "it is nested or linked too deeply"
    if code == -signal.SIGXCPU:
        return limits.too_slow
    if code == -signal.SIGABRT:
        return limits.too_large_to_compile
    return f"the library failed on it (exit code {code})"
