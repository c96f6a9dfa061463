"""How ranks on several machines connect to each other.

Rank 0 listens at an address that all ranks know (`Host`). Every other rank connects to it (`join`), with
three connections: for work, for heartbeats, and for the outputs of products. When all have connected, rank 0
tells each rank where the others listen, and every two ranks connect.

Before that, rank 0 compares everything that must be the same on all ranks (`facts`). A rank with another
model or other options is refused, with the reason. Data that may differ (`offer`) is sent to rank 0. When all
ranks have connected, rank 0 computes a result from all offers (`agree`) and sends it to all.

On each other machine, the process that starts ranks has a connection too (`attend`). When it closes, rank 0
has ended, and this process ends its ranks, even those that hang. The first messages are JSON, preceded by
their length."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

log = logging.getLogger("nextn.engine")

KINDS = ("work", "signs", "data")  # connections of a rank to rank 0
HELLO_SECONDS = 5.0  # time in which a new connection must send its first message
TELL_EVERY = 10.0  # seconds between two log lines about missing ranks
AGAIN = 0.2  # seconds until a rank tries again to connect to rank 0
MOST = 1 << 20  # bytes of a message

Facts = Mapping[str, str]
Name = Callable[[int], str]  # of a rank
Agree = Callable[[Mapping[int, Any]], Any]  # of the offers of all ranks but 0


def _rank(rank: int) -> str:
    return f"rank {rank}"


def _nothing(offers: Mapping[int, Any]) -> None:
    pass


class Refused(RuntimeError):
    """Rank 0 refuses this rank, or gives up. The text says why."""


@dataclass
class Met:
    """A rank's connections. work: on rank 0 to each other rank, on other ranks to rank 0. signs: the same.
    data: to every other rank, by rank; None for itself. nodes: on rank 0, to the processes that start ranks
    on other machines. agreed: the result of `agree`, the same on all ranks."""

    work: dict[int, Connection]
    signs: dict[int, socket.socket]
    data: list[socket.socket | None]
    nodes: list[socket.socket]
    agreed: Any = None


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise OSError(f"{host}:{port} is taken; give another --dist-init-addr to every node") from e
        if e.errno in (errno.EADDRNOTAVAIL, socket.EAI_NONAME):
            raise OSError(
                f"{host}:{port} is no address of this machine; --dist-init-addr names node 0, and this is "
                "node 0 (--node-rank)"
            ) from e
        raise OSError(f"cannot listen at {host}:{port} (--dist-init-addr): {e}") from e


class Host:
    """Rank 0's part. Ranks may connect from its creation on. nodes: number of other machines that `attend`.
    name: the name of a rank in messages."""

    def __init__(
        self, address: tuple[str, int], size: int, facts: Facts, nodes: int = 0, name: Name = _rank
    ) -> None:
        """Raises OSError if it cannot listen at this address."""
        self._listener = listen(*address)
        self._size, self._facts, self._name = size, facts, name
        self._nodes: dict[int, socket.socket | None] = dict.fromkeys(range(1, nodes + 1))
        self._come: dict[str, dict[str, socket.socket]] = {}  # by the word of a rank's process, and by kind
        self._ranks: dict[int, tuple[str, Any]] = {}  # by rank: its word and its first message

    @property
    def address(self) -> tuple[str, int]:
        found: tuple[str, int] = self._listener.getsockname()[:2]
        return found

    def meet(self, timeout: float, check: Callable[[], None] = lambda: None, agree: Agree = _nothing) -> Met:
        """Waits for all ranks. check: called every second; its exceptions end the wait. agree: makes plain
        data from the ranks' offers; its exception is sent to the other ranks.

        Raises ValueError for a rank that differs, TimeoutError with the missing ranks, and the errors of
        `agree`."""
        until = time.monotonic() + timeout
        tell = time.monotonic() + TELL_EVERY / 5
        self._listener.settimeout(1.0)
        try:
            while missing := self._missing():
                check()
                now = time.monotonic()
                waiting = f"{missing} at {_shown(self.address)}"
                if now > until:
                    raise TimeoutError(
                        f"waited {timeout:g} s for {waiting}; start every node with the same "
                        "--dist-init-addr, --nnodes and --tp-size, or raise --dist-timeout"
                    )
                if now > tell:
                    log.info("%s waits for %s", self._name(0), waiting)
                    tell = now + TELL_EVERY
                with contextlib.suppress(TimeoutError):
                    self._take(*self._listener.accept())
            return self._met(agree({rank: hello["offer"] for rank, (_, hello) in self._ranks.items()}))
        except BaseException as e:
            self._tell_all({"error": str(e) or type(e).__name__})
            self.close()
            raise

    def close(self) -> None:
        self._listener.close()
        for come in self._come.values():
            for end in come.values():
                end.close()
        for node in self._nodes.values():
            if node is not None:
                node.close()

    def _missing(self) -> str:
        """The ranks that have not connected, as text; "" if all have."""
        for rank, (word, _) in list(self._ranks.items()):
            if _ended(self._come[word]["work"]):  # it will connect again
                del self._ranks[rank]
        there = {rank for rank, (word, _) in self._ranks.items() if len(self._come[word]) == len(KINDS)}
        missing = [self._name(rank) for rank in range(1, self._size) if rank not in there]
        if missing:
            return ", ".join(missing)
        absent = [node for node, end in self._nodes.items() if end is None or _ended(end)]
        return f"node {absent[0]}" if absent else ""

    def _take(self, end: socket.socket, address: Any) -> None:
        try:
            end.settimeout(HELLO_SECONDS)
            hello = _receive(end)
            if hello["kind"] == "node" and hello["node"] in self._nodes:
                self._nodes[hello["node"]] = end
                return
            kind, word = hello["kind"], str(hello["word"])
            if kind not in KINDS:
                raise ValueError(f"kind {kind!r}")
            if kind == "work" and not (isinstance(hello["rank"], int) and dict(hello["facts"])):
                raise ValueError("its first message is none of ours")
            if kind == "work":
                hello["port"], hello["host"] = int(hello["port"]), str(hello["host"])
                hello["name"], hello["offer"] = str(hello["name"]), hello.get("offer")
        except (OSError, ValueError, KeyError, TypeError) as e:
            log.warning("%s connected and is no rank of nextn: %s", _shown(address), e or type(e).__name__)
            end.close()
            return
        if kind == "work" and (wrong := self._wrong(hello)):
            with contextlib.suppress(OSError):
                _send(end, {"error": wrong})
            end.close()
            if "is here already" not in wrong:
                raise ValueError(wrong)
            log.warning("%s: %s", _shown(address), wrong)
            return
        self._come.setdefault(word, {})[kind] = end
        if kind == "work":
            self._ranks[hello["rank"]] = word, hello
            log.info("%s has come from %s", hello["name"], _shown(address))

    def _wrong(self, hello: Any) -> str:
        """Why this rank is refused; "" if it is accepted."""
        rank, name, host = hello["rank"], hello["name"], self._name(0)
        theirs = hello["facts"]
        for fact in dict.fromkeys((*self._facts, *theirs)):
            own, other = self._facts.get(fact, "none"), theirs.get(fact, "none")
            if own != other:
                return f"{fact} is {own} on {host} and {other} on {name}: all ranks need the same"
        if not 0 < rank < self._size:
            return f"{name} has come, and there are {self._size}: --nnodes or --tp-size differ"
        if rank in self._ranks and not _ended(self._come[self._ranks[rank][0]]["work"]):
            return f"{name} is here already: two nodes have the same --node-rank"
        return ""

    def _met(self, agreed: Any) -> Met:
        peers = {rank: (hello["host"], hello["port"]) for rank, (_, hello) in self._ranks.items()}
        self._tell_all({"peers": peers, "agreed": agreed})
        self._listener.close()
        nodes = [_plain(end) for end in self._nodes.values() if end is not None]
        met = Met({}, {}, [None] * self._size, nodes, agreed)
        self._nodes = {}
        for rank, (word, _) in self._ranks.items():
            come = {kind: _plain(end) for kind, end in self._come.pop(word).items()}
            met.work[rank] = Connection(come["work"].detach())
            met.signs[rank], met.data[rank] = come["signs"], come["data"]
        for rest in self._come.values():  # of ranks that ended during the wait
            for end in rest.values():
                end.close()
        return met

    def _tell_all(self, message: object) -> None:
        for word, _ in self._ranks.values():
            with contextlib.suppress(OSError):
                _send(self._come[word]["work"], message)


def join(
    address: tuple[str, int],
    rank: int,
    size: int,
    facts: Facts,
    timeout: float,
    name: Name = _rank,
    offer: Any = None,
) -> Met:
    """The part of every rank but 0. offer: plain data, for rank 0's `agree`. Raises Refused, TimeoutError if
    rank 0 cannot be reached, OSError if it ends meanwhile."""
    work = _find(address, name(rank), timeout)
    opened = [work]

    def connected(to: tuple[str, int], message: object) -> socket.socket:
        opened.append(end := socket.create_connection(to, timeout=timeout))
        _send(end, message)
        return end

    try:
        host, word = work.getsockname()[0], uuid.uuid4().hex
        with listen(host, 0) as listener:
            signs, first = (connected(address, {"kind": kind, "word": word}) for kind in KINDS[1:])
            # Sent last: rank 0 may answer with a refusal, and does not listen any more after that.
            hello = {"kind": "work", "word": word, "rank": rank, "name": name(rank)}
            hello |= {"facts": dict(facts), "host": host, "offer": offer}
            _send(work, {**hello, "port": listener.getsockname()[1]})
            work.settimeout(timeout + HELLO_SECONDS)
            answer = _receive(work)
            if "error" in answer:
                raise Refused(answer["error"])
            data: list[socket.socket | None] = [first, *[None] * (size - 1)]
            for other in range(1, rank):
                data[other] = connected(tuple(answer["peers"][str(other)]), {"rank": rank})
            listener.settimeout(timeout)
            for _ in range(rank + 1, size):
                opened.append(end := listener.accept()[0])
                end.settimeout(HELLO_SECONDS)
                data[_receive(end)["rank"]] = end
        for end in opened:
            _plain(end)
    except BaseException:
        for end in opened:
            end.close()
        raise
    return Met({0: Connection(work.detach())}, {0: signs}, data, [], answer["agreed"])


def attend(address: tuple[str, int], node: int, timeout: float, check: Callable[[], None]) -> socket.socket:
    """For the process that starts the ranks of another machine: a connection that ends with rank 0. check:
    called while rank 0 does not listen yet; its exceptions end the wait. Raises TimeoutError, OSError."""
    end = _find(address, f"node {node}", timeout, check)
    _send(end, {"kind": "node", "node": node})
    return _plain(end)


def _find(
    address: tuple[str, int], who: str, timeout: float, check: Callable[[], None] = lambda: None
) -> socket.socket:
    until = time.monotonic() + timeout
    tell = time.monotonic() + TELL_EVERY / 5
    while True:
        try:
            return socket.create_connection(address, timeout=HELLO_SECONDS)
        except OSError as e:  # rank 0 does not listen yet, or its name cannot be resolved yet
            check()
            now = time.monotonic()
            if now > until:
                raise TimeoutError(
                    f"{who} has found no rank 0 at {_shown(address)} within {timeout:g} s ({e}); start "
                    "node 0, and give every node the same --dist-init-addr"
                ) from e
            if now > tell:
                log.warning("%s waits for rank 0 at %s (%s)", who, _shown(address), e)
                tell = now + TELL_EVERY
            time.sleep(AGAIN)


def _plain(end: socket.socket) -> socket.socket:
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def _ended(end: socket.socket) -> bool:
    """Whether the other side has closed it. The other side sends nothing before it gets an answer."""
    try:
        end.setblocking(False)
        return not end.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(end: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    end.settimeout(HELLO_SECONDS)
    end.sendall(struct.pack(">I", len(data)) + data)


def _receive(end: socket.socket) -> Any:
    """Raises OSError, ValueError."""
    (size,) = struct.unpack(">I", _exactly(end, 4))
    if size > MOST:
        raise ValueError("its first message is none of ours")
    return json.loads(_exactly(end, size))


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        some = end.recv(size - len(data))
        if not some:
            raise OSError("it has closed the connection")
        data += some
    return data


def _shown(address: Any) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
