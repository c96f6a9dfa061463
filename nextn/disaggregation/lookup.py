"""Asks bootstrap ports which engine has a room. A room is the number by which both servers know a request.

Each bootstrap port has its own thread, so a port that does not answer delays no other port. The thread asks
for its rooms in turn over one connection, and asks again while the port does not know a room yet.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from nextn.disaggregation.remote import Remote

PORTS = 256  # bootstrap ports at a time, at most; requests choose them freely
MOST_BYTES = 64 << 10  # bytes of an answer, at most
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.25  # seconds between two questions for the same room
REFUSED = 1.0  # seconds that a port may refuse connections before its rooms count as lost
IDLE = 10.0  # seconds that a thread without rooms waits before it ends
ANYWHERE = ("", "0.0.0.0", "::")  # addresses to listen on that nobody can connect to

Address = tuple[int, Any]  # the socket's family and address


class _Lost(Exception):
    """No engine will ever have the room."""


class _Route(msgspec.Struct):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    dp_rank: int | None = None


class _Question(NamedTuple):
    remote: Remote
    until: float
    answer: Callable[[Address | None, str], None]
    wanted: Callable[[], bool]
    pause: float
    next: float


class Lookups:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Condition()
        self._questions: dict[tuple[str, int], deque[_Question]] = {}
        self._closed = False

    def ask(
        self, remote: Remote, answer: Callable[[Address | None, str], None], wanted: Callable[[], bool]
    ) -> None:
        """Calls `answer` once, usually in another thread: with the engine's address, or with None and the
        error. Never calls it if `wanted` has become false."""
        port, now = (remote.host, remote.port), time.monotonic()
        question = _Question(remote, now + self._timeout, answer, wanted, FIRST_PAUSE, now)
        with self._lock:
            if port in self._questions:
                self._questions[port].append(question)
                self._lock.notify_all()
                return
            if len(self._questions) < PORTS:
                self._questions[port] = deque([question])
                name = f"kv-lookup-{remote.host}:{remote.port}"
                try:
                    threading.Thread(target=self._run, args=(port,), name=name, daemon=True).start()
                    return
                except RuntimeError as problem:
                    del self._questions[port]
                    error = _said(remote, problem)
            else:
                error = f"more than {PORTS} bootstrap ports are in use"
        answer(None, error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _run(self, port: tuple[str, int]) -> None:
        link: http.client.HTTPConnection | None = None
        while (question := self._next(port)) is not None:
            try:
                if link is None:
                    link = http.client.HTTPConnection(*port, timeout=max(0.01, self._timeout / 2))
                self._try(link, question)
            except Exception as problem:  # for example an invalid address
                question.answer(None, _said(question.remote, problem))
        if link is not None:
            link.close()

    def _next(self, port: tuple[str, int]) -> _Question | None:
        """Waits for a question whose time has come. None: this thread is no longer needed."""
        with self._lock:
            questions, idle = self._questions[port], time.monotonic() + IDLE
            while True:
                now = time.monotonic()
                if self._closed or (not questions and now >= idle):
                    del self._questions[port]
                    return None
                soonest = min(questions, key=lambda each: each.next, default=None)
                if soonest is not None and soonest.next <= now:
                    questions.remove(soonest)
                    return soonest
                self._lock.wait((idle if soonest is None else soonest.next) - now)

    def _try(self, link: http.client.HTTPConnection, question: _Question) -> None:
        if not question.wanted():
            return
        remote, found, lost = question.remote, None, False
        try:
            found, error = _engine(link, remote)
        except _Lost as problem:
            error, lost = str(problem), True
        except ConnectionRefusedError as problem:
            link.close()
            error = _said(remote, problem)
            lost = time.monotonic() > question.until - self._timeout + REFUSED
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as problem:
            link.close()
            error = _said(remote, problem)
            if isinstance(problem, TimeoutError):
                self._answer_late(remote, error)
        now = time.monotonic()
        if found is not None or lost or now > question.until:
            question.answer(found, error)
            return
        pause = min(LAST_PAUSE, question.pause * 2)
        again = question._replace(pause=pause, next=min(now + pause, question.until + 0.001))
        with self._lock:
            self._questions[remote.host, remote.port].append(again)

    def _answer_late(self, remote: Remote, error: str) -> None:
        """The port is silent. Answers the other questions that have waited long enough, without another
        try."""
        with self._lock:
            questions, now = self._questions[remote.host, remote.port], time.monotonic()
            late = [each for each in questions if now > each.until]
            for each in late:
                questions.remove(each)
        for each in late:
            each.answer(None, error)


def _engine(link: http.client.HTTPConnection, remote: Remote) -> tuple[Address | None, str]:
    """Asks once. Raises _Lost, and the errors of http.client and msgspec."""
    again = link.sock is not None
    try:
        status, body = _get(link, remote)
    except (http.client.RemoteDisconnected, ConnectionError):
        if not again:
            raise
        link.close()  # the server has closed the idle connection
        status, body = _get(link, remote)
    if status == 404:
        return None, f"bootstrap room {remote.room} is unknown"
    if status == 410:
        raise _Lost(f"the prefill server has lost the request of bootstrap room {remote.room}")
    if status != 200:
        raise OSError(f"status {status}")
    route = msgspec.json.decode(body, type=_Route)
    host = remote.host if route.host in ANYWHERE else route.host
    family, _, _, _, address = socket.getaddrinfo(host, route.port, type=socket.SOCK_STREAM)[0]
    return (family, address), ""


def _said(remote: Remote, problem: Exception) -> str:
    return f"bootstrap port {remote.host}:{remote.port}: {problem or type(problem).__name__}"


def _get(link: http.client.HTTPConnection, remote: Remote) -> tuple[int, bytes]:
    rank = "" if remote.dp_rank is None else f"&dp_rank={remote.dp_rank}"
    link.request("GET", f"/route?bootstrap_room={remote.room}{rank}")
    if link.sock is not None:
        with contextlib.suppress(OSError):
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer = link.getresponse()
    body = answer.read(MOST_BYTES)
    if answer.read(1):
        link.close()
    return answer.status, body
