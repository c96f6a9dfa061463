"""A prefill and a decode engine with their agents in this process. Sockets are real, and the loops are like
those of engine processes. A test controls the network and the bootstrap port between them."""

from __future__ import annotations

import functools
import itertools
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from support.transfers import Bootstrap, Network

from nextn.config import EngineConfig
from nextn.disaggregation.agent import Agent, DecodeAgent, PrefillAgent
from nextn.disaggregation.identity import identity_of
from nextn.disaggregation.remote import Remote
from nextn.disaggregation.sink import PageSink
from nextn.disaggregation.source import PageSource
from nextn.engine.engine import Engine
from nextn.request import Output, PromptGroup, Request, SamplingParams

CONTEXT = 72
FAKE = "fake:0.9,0.7"
IDLE = 0.5  # seconds, as in an engine process
SECONDS = 30.0  # after that time a test fails as stuck
HOST = "127.0.0.1"
ROOMS = itertools.count(1)

Text = tuple[list[int], str, int | None]  # tokens, finish reason, what matched


def engine_of(model: str = FAKE, **options: Any) -> Engine:
    """An engine of the fake model has a fixed depth: with the automatic one it would measure its steps for
    0.3 s."""
    depth = {"speculative_num_steps": 2} if model == FAKE else {}
    options = {"context_length": CONTEXT, "kv_cache_tokens": 2048} | depth | options
    return Engine(EngineConfig(model_path=model, threads=1, check_integrity=True, **options))


class Half:
    """One of the two engines, driven as `nextn.server.process.engine_process` does. texts: of requests that
    have ended."""

    def __init__(self, name: str, engine: Engine, agent: Agent) -> None:
        self.name, self.engine, self.agent = name, engine, agent
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.texts: dict[str, Text] = {}
        self.last: dict[str, Output] = {}
        self.news = False  # a message has come from the server
        self.heard = True

    def add(self, request: Request, remote: Remote | None = None) -> None:
        if remote is None:
            self.engine.add(request)
        else:
            self.agent.add(request, remote)
        self.requests[request.rid], self.tokens[request.rid] = request, []
        self.news = True

    def abort(self, rid: str) -> None:
        self.requests.pop(rid, None)
        self.agent.abort(rid)
        self.engine.abort(rid)
        self.news = True

    @property
    def idle(self) -> bool:
        return self.engine.stalled or not self.engine.must_step()

    def turn(self) -> None:
        self.news = False
        outputs = self.engine.step() if self.engine.must_step() else []
        outputs += self.agent.exchange(outputs)
        for out in outputs:
            request = self.requests[out.rid]  # every output needs a request, as in the loop
            self.tokens[out.rid] += out.tokens
            if out.finish_reason is not None:
                out.cached_tokens = request.first_cached
                self.texts[out.rid] = self.tokens[out.rid], out.finish_reason, out.matched
                self.last[out.rid] = out
                del self.requests[out.rid]

    @property
    def done(self) -> bool:
        engine = self.engine
        return not engine.has_work() and not engine.transfers.held and self.agent.stats.active == 0

    def said(self) -> str:
        engine = self.engine
        transfers, stats = engine.transfers, engine.stats()
        return (
            f"{self.name}: unanswered {sorted(self.requests)}, fetching {sorted(transfers.fetching)}, "
            f"held {sorted(transfers.held)}, {stats.waiting} wait, {stats.running} run, "
            f"{self.agent.stats.active} transfers, {stats.used_tokens} slots used, stalled {engine.stalled}"
        )

    def check_empty(self) -> None:
        assert not self.requests, self.said()
        assert not self.engine.transfers.fetching
        assert not self.engine.transfers.held
        assert self.agent.stats.active == 0
        assert self.engine.stats().used_tokens == 0
        self.engine.check_integrity()
        agent = self.agent
        if isinstance(agent, DecodeAgent):
            assert not agent._remotes
            assert not agent._lost
            assert not agent._sink._fetches
            assert not agent._sink._transfers
            assert agent._sink._undelivered == 0
        if isinstance(agent, PrefillAgent):
            assert not agent._computing
            assert not agent._source._offers
            assert not agent._source._transfers


class Asked(NamedTuple):
    """What both halves know about a request. room: the bootstrap room, 0 for none."""

    rid: str
    tokens: list[int]
    params: SamplingParams
    priority: int = 0
    room: int = 0


class Pair:
    def __init__(
        self,
        prefill: Engine,
        decode: Engine,
        bootstrap: Bootstrap,
        backend: str = "tcp",
        timeout: float = 30.0,
        fallback: bool = True,
    ) -> None:
        self.bootstrap, self._backend, self._timeout, self._fallback = bootstrap, backend, timeout, fallback
        self._networks: list[Network] = []
        self.decode = self._decode_half(decode)
        self.prefill = self._prefill_half(prefill)

    def _decode_half(self, engine: Engine) -> Half:
        sink = PageSink(identity_of(engine), self._backend, self._timeout)
        return Half("decode", engine, DecodeAgent(engine, sink, self._fallback))

    def _prefill_half(self, engine: Engine) -> Half:
        source = PageSource(identity_of(engine), self._backend, HOST, self._timeout)
        self._networks.append(Network(source.port))
        return Half("prefill", engine, PrefillAgent(engine, source))

    @property
    def halves(self) -> tuple[Half, Half]:
        return self.prefill, self.decode

    @property
    def network(self) -> Network:
        return self._networks[-1]

    def asked(self, rid: str, tokens: Sequence[int], params: SamplingParams, priority: int = 0) -> Asked:
        return Asked(rid, list(tokens), params, priority, next(ROOMS))

    def compute(self, asked: Asked) -> None:
        """Adds the prefill server's half of a request."""
        params = SamplingParams(max_tokens=0)
        self.prefill.add(Request(asked.rid, list(asked.tokens), params, asked.priority), Remote(asked.room))
        self.bootstrap.routes[asked.room] = HOST, self.network.port

    def answer(self, asked: Asked, choices: int = 1) -> list[str]:
        """Adds the decode server's half. With several choices, the requests of the prompt form a group.
        Returns their ids."""
        group = PromptGroup() if choices > 1 else None
        made = []
        for i in range(choices):
            rid = asked.rid if choices == 1 else f"{asked.rid}.{i}"
            request = Request(rid, list(asked.tokens), asked.params, asked.priority, group)
            self.decode.add(request, self.bootstrap.remote(asked.room))
            made.append(rid)
        return made

    def ask(self, rid: str, tokens: Sequence[int], params: SamplingParams, priority: int = 0) -> None:
        """Adds both halves of a request."""
        asked = self.asked(rid, tokens, params, priority)
        self.compute(asked)
        self.answer(asked)

    def lose(self, rid: str, room: int) -> None:
        """Ends the prefill server's half early; the bootstrap port knows that it is lost."""
        self.prefill.abort(rid)
        self.forget_room(room)

    def forget_room(self, room: int) -> None:
        self.bootstrap.lost.add(room)
        self.bootstrap.routes.pop(room, None)

    def restart_prefill(self, engine: Engine) -> None:
        """The prefill engine's process dies, and a new one starts."""
        self.network.close()
        self.prefill.agent.close()
        self.prefill = self._prefill_half(engine)

    def restart_decode(self, engine: Engine) -> None:
        self.decode.agent.close()
        self.decode = self._decode_half(engine)

    def turn(self, halves: Iterable[Half] | None = None, wait: float = IDLE) -> None:
        """One turn of the loops of `halves`. An idle half runs after news, when its agent has something, or
        after `wait` seconds."""
        halves = list(self.halves if halves is None else halves)
        busy = [half for half in halves if half.news or not half.idle]
        awake, _, _ = select.select([half.agent for half in halves], [], [], 0 if busy else wait)
        nothing = not busy and not awake
        for half in halves:
            if nothing or half in busy or half.agent in awake:
                half.turn()

    def settle(self) -> None:
        """Runs turns until both halves are done. Fails after SECONDS."""
        end = time.monotonic() + SECONDS
        while not all(half.done for half in self.halves):
            assert time.monotonic() < end, "stuck: " + "; ".join(half.said() for half in self.halves)
            self.turn()

    def check_empty(self) -> None:
        for half in self.halves:
            half.check_empty()

    def close(self) -> None:
        for half in self.halves:
            half.agent.close()
        for network in self._networks:
            network.close()


@contextmanager
def pair(
    bootstrap: Bootstrap, prefill: Engine | None = None, decode: Engine | None = None, **options: Any
) -> Iterator[Pair]:
    """A Pair, closed at the end."""
    made = Pair(prefill or engine_of(), decode or engine_of(), bootstrap, **options)
    try:
        yield made
    finally:
        made.close()


@functools.cache
def _one() -> Engine:
    return engine_of(speculative_num_steps=0, disable_radix_cache=True)


def alone(tokens: Sequence[int], params: SamplingParams, engine: Engine | None = None) -> Text:
    """The text of one engine, without drafts and without a prefix cache."""
    engine = engine or _one()
    engine.add(Request("alone", list(tokens), params))
    found: list[int] = []
    while True:
        for out in engine.step():
            found += out.tokens
            if out.finish_reason is not None:
                return found, out.finish_reason, out.matched
