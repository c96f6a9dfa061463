"""Moves pages between an engine and its `PageSource` or `PageSink`, in the engine's thread, between steps.

If the KV pool is in this process's memory, the sink's thread writes received pages into it, but only pages of
requests that fetch. The engine's thread tells the sink before it frees such pages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from nextn.disaggregation.identity import identity_of
from nextn.disaggregation.landing import Landing
from nextn.disaggregation.page_copies import PageCopies
from nextn.disaggregation.remote import Remote
from nextn.disaggregation.sink import Arrived, Ended, PageSink
from nextn.disaggregation.source import PageSource
from nextn.disaggregation.turns import Piece
from nextn.engine.engine import Engine
from nextn.request import PREFILL_FAILED, Failure, Output, Request
from nextn.server_config import ServerConfig
from nextn.stats import TransferStats

log = logging.getLogger("nextn.engine")


MOST_COPIED = 8 << 20  # bytes; after copying more than this, the next step begins


class Agent(Protocol):
    port: int  # where decode servers fetch pages; 0: this engine has no such port

    def add(self, request: Request, remote: Remote) -> None:
        """Adds a request that two engines work on. Raises ValueError as `Engine.add` does."""

    def abort(self, rid: str) -> None:
        """Called before the engine's own `abort`."""

    def exchange(self, outputs: Sequence[Output]) -> list[Output]:
        """Called after each step with its outputs, and when `fileno` is readable. Returns further outputs.
        Raises RuntimeError if the transfer thread has failed: the engine must then be started again."""

    def fileno(self) -> int: ...

    @property
    def stats(self) -> TransferStats: ...

    def close(self) -> None: ...


def make_agent(engine: Engine, config: ServerConfig, rank: int = 0) -> Agent | None:
    """Returns None for a server that both computes prompts and generates (mode "null"). rank: index of this
    engine among the server's replicas or groups. Raises OSError if it cannot listen on its port."""
    mode, backend = config.disaggregation_mode, config.disaggregation_transfer_backend
    if mode == "null":
        return None
    identity, timeout = identity_of(engine), config.disaggregation_timeout
    if mode == "prefill":
        first = config.disaggregation_transfer_port
        port = first + rank if first else 0
        return PrefillAgent(engine, PageSource(identity, backend, config.host, timeout, port))
    sink = PageSink(identity, backend, timeout)
    return DecodeAgent(engine, sink, fallback=config.disaggregation_fallback == "on")


class PrefillAgent:
    def __init__(self, engine: Engine, source: PageSource) -> None:
        self._engine, self._source = engine, source
        memory = engine.transfers.memory()
        self._page_bytes = source.layout.page_bytes
        self._copies = None if memory is None else PageCopies(memory, engine.transfers.page_size)
        self._computing: dict[str, Request] = {}
        self._told: dict[str, int] = {}  # number of slots last reported to the source, by request id
        self.port = source.port

    def add(self, request: Request, remote: Remote) -> None:
        request.hold = True
        self._source.offer(request.rid, remote.room, request.tokens)
        try:
            self._engine.add(request)
        except BaseException:
            self._source.withdraw(request.rid)
            raise
        self._computing[request.rid] = request

    def abort(self, rid: str) -> None:
        if self._forget(rid) is not None:
            self._source.withdraw(rid)

    def exchange(self, outputs: Sequence[Output]) -> list[Output]:
        self._source.clear()
        self._source.check()
        transfers = self._engine.transfers
        for out in outputs:
            if out.finish_reason is not None and (request := self._forget(out.rid)) is not None:
                if out.rid in transfers.held:
                    self._source.finished(out.rid, self._true(request), request.first_cached)
                else:
                    self._source.withdraw(out.rid)
        for rid, request in self._computing.items():
            if (slots := self._true(request)) != self._told.get(rid, 0):
                self._told[rid] = slots
                self._source.committed(rid, slots)
        copied = 0
        while (piece := self._source.wanted()) is not None:
            request = self._computing.get(piece.rid) or transfers.held[piece.rid]
            self._send(request, piece)
            copied += piece.pages * self._page_bytes
            if copied > MOST_COPIED:  # do not delay the next step for more
                self._source.wake_engine()
                break
        for end in self._source.poll():
            if end.rid in transfers.held:
                transfers.release(end.rid)
            elif (unwanted := self._forget(end.rid)) is not None:
                unwanted.hold = False
            if end.error is not None:
                log.warning("request %s: its pages were not fetched: %s", end.rid, end.error)
        self._source.blocked(transfers.blocked)
        return []

    def _send(self, request: Request, piece: Piece) -> None:
        if self._copies is not None:
            pages = request.pages[piece.first_page : piece.first_page + piece.pages]
            self._source.copy(piece, self._copies, pages)
            return
        data = self._source.memory(piece)
        self._engine.transfers.read(request, piece.first_page, piece.pages, data)
        self._source.put(piece, data)

    def _forget(self, rid: str) -> Request | None:
        self._told.pop(rid, None)
        return self._computing.pop(rid, None)

    def _true(self, request: Request) -> int:
        """Number of slots with final entries in all layers. It is lower for a while after a retraction."""
        lag = max(0, self._engine.info.nextn_layers - 1)
        return min(max(0, request.committed - lag), self._engine.transfers.whole(request))

    def fileno(self) -> int:
        return self._source.fileno()

    @property
    def stats(self) -> TransferStats:
        return self._source.stats

    def close(self) -> None:
        self._source.close()


class DecodeAgent:
    port = 0

    def __init__(self, engine: Engine, sink: PageSink, fallback: bool = True) -> None:
        """fallback: whether the engine itself computes a prompt whose pages do not arrive."""
        self._engine, self._sink, self._fallback = engine, sink, fallback
        self._remotes: dict[str, Remote] = {}
        self._lost: dict[str, str] = {}  # errors of requests that the scheduler has not admitted yet

    def add(self, request: Request, remote: Remote) -> None:
        """In a group, only the first request fetches; the others share its pages."""
        request.fetch = request.group is None or not request.group.members
        self._engine.add(request)
        if request.fetch:
            try:
                self._sink.want(request.rid, remote, request.tokens)
            except BaseException:
                self._engine.abort(request.rid)
                raise
            self._remotes[request.rid] = remote

    def abort(self, rid: str) -> None:
        if self._remotes.pop(rid, None) is not None and self._lost.pop(rid, None) is None:
            self._sink.cancel(rid)

    def exchange(self, outputs: Sequence[Output]) -> list[Output]:
        self._sink.clear()
        self._sink.check()
        for out in outputs:
            if out.finish_reason is not None:  # it may not have fetched: another request of its group did
                self.abort(out.rid)
        fetching, ended = self._engine.transfers.fetching, list[Output]()
        for request in self._engine.transfers.begun():
            if (error := self._lost.pop(request.rid, None)) is None:
                self._sink.begin(request.rid, request.committed, self._landing(request))
            else:
                ended += self._ended(Ended(request.rid, request.committed, 0, error))
        for event in self._sink.poll():
            if isinstance(event, Arrived):
                self._engine.transfers.write(fetching[event.rid], event.first_page, event.data)
            elif event.rid in fetching:
                ended += self._ended(event)
            else:
                self._lost[event.rid] = event.error or "the transfer ended before it began"
        return ended

    def _landing(self, request: Request) -> Landing | None:
        """Returns the pages that the sink's thread fills, or None if the pool is not in this process. A step
        that was launched earlier may still write to these pages; `memory()` waits for it."""
        if (memory := self._engine.transfers.memory()) is None:
            return None
        return Landing(PageCopies(memory, self._engine.transfers.page_size), request.pages[:])

    def _ended(self, event: Ended) -> list[Output]:
        """No more pages will arrive for this request."""
        remote, request = self._remotes.pop(event.rid), self._engine.transfers.fetching[event.rid]
        whole = self._engine.transfers.whole(request)  # the other server's number is not trusted
        slots = max(min(event.slots, whole), request.committed)
        failure = None if event.error is None else self._failed(request, remote, slots, event.error)
        return self._engine.transfers.fetched(event.rid, slots, event.cached_tokens, failure)

    def _failed(self, request: Request, remote: Remote, slots: int, error: str) -> Failure | None:
        """slots: number of slots that this engine has, those in its own prefix cache among them."""
        what = f"the prefill server at {remote.host}:{remote.port} failed: {error!r}"
        if not self._fallback:
            return Failure(PREFILL_FAILED, what)
        rest = len(request.tokens) - slots
        log.warning(
            "request %s: %s; %d of its prompt's tokens are here, and %d are computed here",
            request.rid, what, slots, rest,
        )  # fmt: skip
        self._sink.stats.fallbacks += 1
        return None

    def fileno(self) -> int:
        return self._sink.fileno()

    @property
    def stats(self) -> TransferStats:
        return self._sink.stats

    def close(self) -> None:
        self._sink.close()
