"""The HTTP process's client of the engine: sends requests, and passes each output to the task that waits for
it.

The supervisor attaches it to one engine process after another.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nextn.expert_load import ExpertRecord
from nextn.request import Output, SpeculativeParams
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.server.process.inbox import Update, Updates
from nextn.server.process.messages import (
    Abort,
    Done,
    FlushCache,
    FromEngine,
    NewRequest,
    Profiled,
    PromptScores,
    Ready,
    RecordAction,
    Recorded,
    RecordExperts,
    Rejected,
    SetSpeculativeDefaults,
    StartProfile,
    StepOutputs,
    StopProfile,
    ToEngine,
    Tokens,
    add_of,
    encode,
)
from nextn.server.process.rooms import Rooms
from nextn.server.protocol.errors import ApiError, bad_request, engine_dead, no_engine, unavailable
from nextn.trace import TRACE, ProcessTrace


class Sender(Protocol):
    """Sends messages to the engine process. Implemented by `Channel`."""

    def send(self, message: bytes, /) -> None: ...


@dataclass(slots=True)
class Waiter:
    queue: Updates
    name: str  # the request's id for the client
    tokens: int  # number of tokens in the prompt and generated so far
    room: int | None = None  # on a prefill server


@dataclass
class EngineClient:
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    request_timeout: float | None = None  # seconds
    ready: Ready | None = None  # set while an engine runs and can serve
    rank: int | None = None  # number of this replica, if there are several
    waiters: dict[str, Waiter] = field(default_factory=dict)  # by rid
    # The engines that share experts with this one, including itself; empty if it shares none.
    partners: Sequence[EngineClient] = field(default=(), repr=False, compare=False)
    tokens: int = 0  # sum over all waiters
    socket: Sender | None = None
    rooms: Rooms | None = None  # on a prefill server
    speculative_defaults: SpeculativeParams = field(default_factory=SpeculativeParams)  # as last set
    recording: bool = False  # whether rows of experts are recorded; a new engine continues with it
    calls: dict[int, asyncio.Future[Any]] = field(default_factory=dict)  # sent and not answered yet
    numbers: Iterator[int] = field(default_factory=itertools.count)
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # set by each message from the engine
    silent_since: float = 0.0  # monotonic time of the engine's last message, or of new work while it was idle

    @property
    def active(self) -> int:
        """Number of requests sent and not finished."""
        return len(self.waiters)

    @property
    def waiting(self) -> int:
        """Number of requests that have not begun, by the engine's last message."""
        return self.metrics.stats.waiting

    @property
    def ranks(self) -> Sequence[EngineClient]:
        return (self,)

    def attach(self, ready: Ready, socket: Sender) -> None:
        self.ready, self.socket, self.metrics.stats = ready, socket, ready.stats
        self.metrics.engine_up = True
        if self.speculative_defaults != SpeculativeParams():  # set on an earlier engine
            self._send(SetSpeculativeDefaults(next(self.numbers), self.speculative_defaults))

        if self.recording:
            self._send(RecordExperts(next(self.numbers), "start"))

    def detach(self, reason: str) -> None:
        """Called when the engine has ended. Each waiter gets an error."""
        self.ready = self.socket = None
        self.metrics.engine_gone()
        self.fail_all(engine_dead(reason))
        for call in self.calls.values():
            if not call.done():
                call.set_exception(engine_dead(reason))

    def fail_all(self, error: ApiError) -> None:
        """Gives each waiter this error. Later messages from the engine about these requests are dropped."""
        for rid in list(self.waiters):
            self._deliver(rid, error, last=True)

    def submit(
        self,
        requests: list[NewRequest],
        queue: Updates,
        names: Sequence[str] | None = None,
        rank: int | None = None,
    ) -> None:
        """Sends requests to the engine. Their updates go into `queue`. If the engine has ended in the
        meantime, the update is an error. names: the clients' ids for the requests, if they differ from the
        rids. rank: unused, because there is only one engine."""
        if self.ready is None:
            for request in requests:
                queue.put_nowait(Update(request.rid, no_engine(self.rank)))
            return
        if not self.waiters:
            self.silent_since = time.monotonic()
        sent = []
        for request, name in zip(requests, names or [r.rid for r in requests], strict=True):
            room = None
            if self.rooms is not None and request.remote is not None:
                room = request.remote.room
                if not self.rooms.open(room, self.rank or 0, self.ready):
                    message = f"bootstrap_room {room} is in use by a running request; send another number"
                    queue.put_nowait(Update(request.rid, bad_request(message, "bootstrap_room")))
                    continue
            self.waiters[request.rid] = Waiter(queue, name, len(request.tokens), room)
            self.tokens += len(request.tokens)
            sent.append(request)
        if sent:
            self._send(add_of(sent))

    def abort(self, rid: str) -> bool:
        """Ends a request and its updates. Returns False if it had ended already."""
        if rid not in self.waiters:
            return False
        self._forget(rid, lost=True)
        self._send(Abort(rid))
        return True

    def end(self, beginning: str) -> None:
        """Ends each request whose name begins with `beginning`. Its waiter gets an output with reason
        "abort"."""
        for rid, waiter in list(self.waiters.items()):
            if waiter.name.startswith(beginning):
                self._deliver(rid, Output(rid, [], [], "abort"), last=True)
                self._send(Abort(rid))

    async def set_speculative_defaults(self, defaults: SpeculativeParams) -> None:
        """Sets the defaults of later requests. An engine must be running. Raises ValueError if it does not
        support them, ApiError if it ends before it has answered."""
        await self._call(SetSpeculativeDefaults(next(self.numbers), defaults))
        self.speculative_defaults = defaults

    async def flush_cache(self) -> None:
        """Empties the prefix cache. An engine must be running. Raises ValueError while it has requests,
        ApiError if it ends before it has answered."""
        await self._call(FlushCache(next(self.numbers)))

    async def record_experts(self, action: RecordAction) -> list[ExpertRecord]:
        """Starts or stops recording the rows of experts. "dump" returns the record, if there is one, and
        begins a new one. An engine must be running. Raises ValueError if it does not count, ApiError if it
        ends before it has answered."""
        record = await self._call(RecordExperts(next(self.numbers), action))
        if action != "dump":
            self.recording = action == "start"
        return [] if record is None else [record]

    def profile(self, steps: int | None, first: int | None) -> asyncio.Future[ProcessTrace]:
        """Records a profile of the engine, see `StartProfile`. An engine must be running. The future is done
        after `steps` steps, or after `end_profile`. It has an ApiError if the engine ends before that."""
        message = StartProfile(next(self.numbers), steps, first)
        done = self.calls[message.call] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda _: self.calls.pop(message.call))
        self._send(message)
        return done

    def end_profile(self) -> None:
        self._send(StopProfile())

    async def _call(self, message: SetSpeculativeDefaults | FlushCache | RecordExperts) -> Any:
        assert self.ready is not None
        done = self.calls[message.call] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await done
        finally:
            del self.calls[message.call]

    def _send(self, message: ToEngine) -> None:
        if self.socket is not None:
            self.socket.send(encode(message))

    def silent_for(self) -> float:
        """Seconds since the last message from an engine that has requests; 0 if it has none."""
        return time.monotonic() - self.silent_since if self.waiters else 0.0

    def receive(self, message: FromEngine) -> None:
        self.heard.set()
        self.silent_since = time.monotonic()
        lap = TRACE.laps("server")
        if isinstance(message, StepOutputs):
            self.metrics.on_step(message.stats, message.seconds)
            for scores in message.scores:
                self._deliver_scores(scores)
            for tokens in message.tokens:
                self._deliver_tokens(tokens)
            for out in message.outputs:
                self._deliver(out.rid, out, last=out.finish_reason is not None)
            lap("hand out", outputs=len(message.outputs) + len(message.tokens))
        elif isinstance(message, Rejected):
            error = unavailable(message.message, "grammars_busy") if message.busy else None
            self._deliver(message.rid, error or bad_request(message.message), last=True)
        elif isinstance(message, Recorded):
            call = self.calls.get(message.call)
            if call is not None and not call.done():
                call.set_result(message.record)
        elif isinstance(message, Profiled):
            call = self.calls.get(message.call)
            if call is not None and not call.done():
                call.set_result(message.trace)
        elif isinstance(message, Done):
            call = self.calls.get(message.call)
            if call is None or call.done():
                return
            if message.error is None:
                call.set_result(None)
            else:
                call.set_exception(ValueError(message.error))

    def _deliver_scores(self, scores: PromptScores) -> None:
        """Gives a prompt's scores to one request only. `scores.rids` are choices of one client request, whose
        task reads the scores for all of them."""
        rid = next((rid for rid in scores.rids if rid in self.waiters), None)
        if rid is not None:
            self.waiters[rid].queue.put_nowait(Update(rid, scores))

    def _deliver_tokens(self, tokens: Tokens) -> None:
        waiter = self.waiters.get(tokens.rid)
        if waiter is not None:  # otherwise the request was aborted in the meantime
            waiter.tokens += len(tokens.tokens)
            self.tokens += len(tokens.tokens)
            waiter.queue.put_nowait(Update(tokens.rid, tokens))

    def _deliver(self, rid: str, what: Output | ApiError, last: bool) -> None:
        waiter = self.waiters.get(rid)
        if waiter is None:
            return  # aborted in the meantime
        if last:
            self._forget(rid, lost=isinstance(what, ApiError) or what.finish_reason == "abort")
        elif isinstance(what, Output):
            waiter.tokens += len(what.tokens)
            self.tokens += len(what.tokens)
        waiter.queue.put_nowait(Update(rid, what))

    def _forget(self, rid: str, lost: bool) -> None:
        waiter = self.waiters.pop(rid)
        self.tokens -= waiter.tokens
        if self.rooms is not None and waiter.room is not None:
            self.rooms.end(waiter.room, lost)
