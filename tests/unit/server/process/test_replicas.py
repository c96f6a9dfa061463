"""Several engines as one: requests, commands and losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.played_replicas import Played, played_replicas

from nextn.request import Output, SamplingParams, SpeculativeParams
from nextn.server.process.inbox import Update
from nextn.server.process.messages import (
    Abort,
    Done,
    FlushCache,
    FromEngine,
    NewRequest,
    SetSpeculativeDefaults,
    StepOutputs,
)
from nextn.server.protocol.errors import ApiError
from nextn.stats import EngineStats

DEFAULTS = SpeculativeParams(num_steps=3)


def new(rid: str, tokens: int = 4) -> NewRequest:
    return NewRequest(rid, list(range(tokens)), SamplingParams())


def step(rid: str, tokens: int, last: bool = False) -> StepOutputs:
    out = Output(rid, [5] * tokens, [0] * tokens, "length" if last else None)
    return StepOutputs([out], EngineStats(), 0.1)


def done(error: str | None = None) -> Callable[[Any], FromEngine | None]:
    return lambda message: Done(message.call, error) if hasattr(message, "call") else None


def dying(engine: Played) -> Callable[[Any], FromEngine | None]:
    def die(message: object) -> None:
        engine.client.detach("dead")

    return die


def test_outputs_come_to_one_queue_and_tokens_are_counted() -> None:
    replicas, played = played_replicas(2, "round_robin")
    queue: asyncio.Queue[Update] = asyncio.Queue()
    replicas.submit([new("a"), new("b", 6)], queue, ["A", "B"])
    assert [each.rids for each in played] == [["a"], ["b"]]
    assert [client.tokens for client in replicas.ranks] == [4, 6]
    played[1].client.receive(step("b", 3))
    played[0].client.receive(step("a", 2))
    assert [queue.get_nowait().rid for _ in range(2)] == ["b", "a"]
    assert ([client.tokens for client in replicas.ranks], replicas.active) == ([6, 9], 2)
    played[1].client.receive(step("b", 1, last=True))
    replicas.end("A")
    assert ([client.tokens for client in replicas.ranks], replicas.active) == ([0, 0], 0)
    assert [type(message) for message in played[0].received[1:]] == [Abort]


def test_abort_reaches_the_right_replica() -> None:
    replicas, played = played_replicas(3, "round_robin")
    for rid in "abc":
        replicas.submit([new(rid)], asyncio.Queue())
    assert replicas.abort("b")
    assert not replicas.abort("b")
    aborted = [[m.rid for m in each.received if isinstance(m, Abort)] for each in played]
    assert aborted == [[], ["b"], []]


def test_a_dead_replica_fails_its_own_requests_alone() -> None:
    replicas, played = played_replicas(2, "round_robin")
    queues: list[asyncio.Queue[Update]] = [asyncio.Queue(), asyncio.Queue()]
    for rid, queue in zip("ab", queues, strict=True):
        replicas.submit([new(rid)], queue)
    played[0].client.detach("it died")
    assert isinstance(queues[0].get_nowait().what, ApiError)
    assert queues[1].empty()
    assert (replicas.active, replicas.ready) == (1, replicas.ranks[1].ready)
    replicas.submit([new("c")], queues[0], rank=0)
    error = queues[0].get_nowait().what
    assert isinstance(error, ApiError)
    assert (error.status, str(error)[:24]) == (503, "replica 0 is not running")
    played[1].client.detach("it died")
    assert replicas.ready is None
    replicas.submit([new("d")], queues[0])
    assert "the engine is not running" in str(queues[0].get_nowait().what)


def test_the_shortest_context_counts() -> None:
    replicas, played = played_replicas(2)
    played[1].context = 512
    played[1].restart()
    assert replicas.ready is not None
    assert replicas.ready.context_length == 512


async def test_commands_go_to_all() -> None:
    replicas, played = played_replicas(2)
    for each in played:
        each.on = done()
    await replicas.flush_cache()
    await replicas.set_speculative_defaults(DEFAULTS)
    assert [[type(m) for m in each.received] for each in played] == [[FlushCache, SetSpeculativeDefaults]] * 2
    assert replicas.speculative_defaults == DEFAULTS


async def test_one_that_is_down_takes_the_defaults_later() -> None:
    replicas, played = played_replicas(2)
    played[0].client.detach("dead")
    played[1].on = done()
    await replicas.set_speculative_defaults(DEFAULTS)
    assert played[0].received == []
    played[0].restart()
    (sent,) = played[0].received
    assert (type(sent), sent.defaults) == (SetSpeculativeDefaults, DEFAULTS)


async def test_one_that_dies_before_it_answers() -> None:
    replicas, played = played_replicas(2)
    played[1].on = done()
    played[0].on = dying(played[0])
    await replicas.set_speculative_defaults(DEFAULTS)
    assert replicas.speculative_defaults == DEFAULTS
    played[1].on = dying(played[1])
    with pytest.raises(ApiError, match="dead"):
        await replicas.flush_cache()


async def test_what_engines_refuse() -> None:
    replicas, played = played_replicas(2)
    for each in played:
        each.on = done("speculative.verify is 'block'; not here")
    with pytest.raises(ValueError, match="not here"):
        await replicas.set_speculative_defaults(DEFAULTS)
    assert replicas.speculative_defaults == SpeculativeParams()


async def test_no_flush_while_any_has_requests() -> None:
    replicas, played = played_replicas(2)
    replicas.submit([new("a")], asyncio.Queue(), rank=1)
    with pytest.raises(ValueError, match="requests are running or waiting"):
        await replicas.flush_cache()
    assert [len(each.received) for each in played] == [0, 1]
