"""Scenarios with faults that a server must survive. Each is a load for some seconds. It asserts its
requirements and returns its measurements.

Requirements of all scenarios: every answer is whole or a clear error, except those that the fault itself
breaks; every whole greedy text equals the other texts of its prompt; at the end no request runs, no page is
held, every request is counted, and no connection is open.
"""

from __future__ import annotations

import asyncio
import collections
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bodies import malformed
from client import Answer, ask
from proxy import ChaosProxy
from server import Server

from nextn.bench.prompts import heldout_prompts

PROMPTS = 16
MAX_TOKENS = 48
GROWTH = 48.0  # maximum growth of a server's memory during a load, in MiB, after it is warm
FEW = 4  # maximum number of files that a server keeps open after a load, for example its log
KILL_EVERY = 3.0  # seconds between two kills, on average
PATIENCE = 120.0  # maximum seconds by which a load is extended until its event has happened

Figures = dict[str, Any]
Once = Callable[[int], Awaitable[Answer]]


@dataclass
class Load:
    """The clients of one scenario, and the results of their requests."""

    server: Server
    seconds: float
    clients: int
    rng: random.Random
    ended: collections.Counter[str] = field(default_factory=collections.Counter)
    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    firsts: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    megabytes: list[float] = field(default_factory=list)
    tokens: int = 0
    took: float = 0.0  # seconds in total; the last answers end after `seconds`
    more: Figures = field(default_factory=dict)  # extra measurements of the scenario
    max_tokens: int = MAX_TOKENS  # of each answer

    def body(self, number: int, **more: Any) -> dict[str, Any]:
        """The body of a greedy request. The prompts repeat, so that their texts can be compared."""
        prompt = self.prompts[number % PROMPTS]
        body = {
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        return body | more

    def __post_init__(self) -> None:
        self.prompts = [prompt[:400] for prompt in heldout_prompts(PROMPTS)]

    async def run(
        self, once: Once, *beside: Awaitable[None], seen: Callable[[], object] | None = None
    ) -> None:
        """Runs `clients` clients, each of which calls `once` repeatedly, for `seconds`. If `seen` is not true
        then, for example on a busy machine, the load continues for at most PATIENCE. By default `seen` is
        that a request was answered. `beside`: endless tasks that run meanwhile."""
        began = time.monotonic()
        until, latest = began + self.seconds, began + self.seconds + PATIENCE
        enough = seen or (lambda: self.ended["whole"])

        def over() -> bool:
            now = time.monotonic()
            return now >= until and (now >= latest or bool(enough()))

        others = [asyncio.ensure_future(each) for each in (*beside, self._look())]

        async def client(index: int) -> None:
            number = index
            while not over():
                self.note(number, await once(number))
                number += self.clients

        clients = asyncio.gather(*map(client, range(self.clients)))
        try:
            done, _ = await asyncio.wait({clients, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises the task's error
        finally:
            for task in (clients, *others):
                task.cancel()
            await asyncio.gather(clients, *others, return_exceptions=True)
            self.took = time.monotonic() - began

    def note(self, number: int, answer: Answer) -> None:
        self.ended[answer.ended] += 1
        if answer.code is not None:
            self.codes[answer.code] += 1
        if answer.ended == "whole" and answer.text:
            self.firsts.append(answer.first)
            self.tokens += self.max_tokens
            before = self.texts.setdefault(number % PROMPTS, answer.text)
            assert answer.text == before, f"prompt {number % PROMPTS}: {before!r}, and now {answer.text!r}"

    async def _look(self) -> None:
        while True:
            self.megabytes.append(self.server.megabytes())
            await asyncio.sleep(min(1.0, self.seconds / 20))

    @property
    def growth(self) -> float:
        """Growth of memory in MiB, from about the first third of the load to its last tenth."""
        n = len(self.megabytes)
        early, late = self.megabytes[n // 4 : n // 3 + 1], self.megabytes[-max(1, n // 10) :]
        return statistics.median(late) - statistics.median(early)

    def summary(self) -> Figures:
        firsts = sorted(self.firsts)
        return {
            "clients": self.clients,
            "seconds": self.seconds,
            "took_seconds": round(self.took, 1),
            "ended": dict(self.ended),
            "codes": dict(self.codes),
            "tokens_per_second": round(self.tokens / max(self.took, 0.1), 1),
            "first_ms": [round(firsts[len(firsts) * p // 100] * 1e3, 1) for p in (50, 99)] if firsts else [],
            "megabytes": round(max(self.megabytes, default=0.0), 1),
            "growth_mb": round(self.growth, 1) if self.megabytes else None,
            **self.more,
        }

    def allow(self, ended: set[str], codes: set[str] | None = None) -> None:
        """Asserts that only these ends and error codes occurred, and that a request was answered."""
        assert set(self.ended) <= ended, self.ended
        assert set(self.codes) <= (codes or set()), self.codes
        assert self.ended["whole"] > 0, self.ended


async def streams(load: Load) -> None:
    """Many streams at once, without an error."""
    await load.run(lambda i: ask(load.server.address, load.body(i)))
    load.allow({"whole"})
    assert load.growth < GROWTH, load.megabytes


async def vanish(load: Load) -> None:
    """Clients that disconnect: within their request, before their answer, or within it."""
    rng = load.rng

    async def once(i: int) -> Answer:
        address, body = load.server.address, load.body(i, stream=rng.random() < 0.7)
        fate = rng.randrange(4)
        if fate == 0:
            return await ask(address, body, send_only=rng.randrange(300), pause=rng.random() * 0.05)
        if fate == 1:
            return await ask(address, body, leave_after=0, pause=rng.random() * 0.2)
        if fate == 2 and body["stream"]:
            return await ask(address, body, leave_after=rng.randrange(1, 12))
        return await ask(address, body)

    await load.run(once)
    load.allow({"whole", "left"})
    assert load.growth < GROWTH, load.megabytes


async def slow_readers(load: Load) -> None:
    """Half of the clients read their answers slowly, and must not delay the others. Their endpoint,
    /generate, sends the whole text so far with every token: more than the sockets' buffers can hold."""

    async def once(i: int) -> Answer:
        if i % 2:
            return await ask(load.server.address, load.body(i))
        params = {"max_new_tokens": 256, "temperature": 0, "ignore_eos": True}
        native = {"text": load.prompts[i % PROMPTS], "stream": True, "sampling_params": params}
        return await ask(load.server.address, native, "/generate", pause=0.01, piece=4096)

    await load.run(once)
    load.allow({"whole"})
    assert load.growth < GROWTH, load.megabytes


async def bad_network(load: Load) -> None:
    """A proxy between clients and server, which delays, cuts into pieces, stalls, closes and resets."""
    async with ChaosProxy(load.server.address, load.rng) as proxy:
        await load.run(lambda i: ask(proxy.address, load.body(i, stream=i % 3 > 0)))
    load.allow({"whole", "broken"})
    load.more["fates"] = dict(proxy.fates)


async def engine_killed(load: Load) -> None:
    """The engine is killed every few seconds. Its requests get an error at once, later ones a 503 until there
    is a new engine."""
    rng = load.rng

    async def kill() -> None:
        while True:
            await asyncio.sleep(KILL_EVERY * (0.5 + rng.random()))
            # An engine that is still starting is killed only sometimes: after each failed start the server
            # waits longer.
            if rng.random() < 0.2 or await asyncio.to_thread(load.server.healthy):
                load.server.kill_engine()

    async def once(i: int) -> Answer:
        answer = await ask(load.server.address, load.body(i, stream=i % 2 > 0))
        if answer.ended == "error":
            await asyncio.sleep(0.05)
        return answer

    await load.run(once, kill(), seen=lambda: load.codes["engine_dead"])
    load.allow({"whole", "error"}, {"engine_dead", "engine_unavailable"})


async def pages_run_out(load: Load) -> None:
    """More requests than the pool has pages for. They take turns, and all must finish."""

    def retracted() -> float:
        return load.server.metrics()["nextn:num_retracted_reqs"]

    # Requests are admitted if their prompts fit. With short answers the free pages could always be enough.
    load.max_tokens = 256
    before = retracted()
    await load.run(lambda i: ask(load.server.address, load.body(i)), seen=lambda: retracted() > before)
    load.allow({"whole"})
    assert retracted() > before, "the pool was large enough for all"


async def malformed_bodies(load: Load) -> None:
    """Malformed bodies: all are answered, none with a 500. Memory grows by the maximum size of simultaneous
    answers: with log-probabilities half a kilobyte for each token that is not sent yet."""

    async def once(i: int) -> Answer:
        path, body = malformed(load.rng)
        answer = await ask(load.server.address, body, path)
        assert answer.status < 500 or answer.code == "queue_full", (path, body, answer)
        assert answer.ended != "broken", (path, body, answer)
        answer.text = ""  # these texts are not compared
        answer.code = None  # every code is allowed here
        return answer

    await load.run(once)
    load.allow({"whole", "error"})
    assert load.growth < GROWTH, load.megabytes


async def everything(load: Load) -> None:
    """All faults except killed engines, for a long time. Memory must not grow."""
    rng = load.rng

    async def once(i: int) -> Answer:
        kind = rng.randrange(8)
        if kind == 0:
            path, body = malformed(rng)
            answer = await ask(load.server.address, body, path)
            assert answer.status < 500 or answer.code == "queue_full", (path, body, answer)
            return Answer("whole")
        if kind == 1:
            return await ask(load.server.address, load.body(i), leave_after=rng.randrange(1, 12))
        if kind == 2:
            return await ask(load.server.address, load.body(i), pause=0.002, piece=512)
        if kind == 3:
            # The prompt is always new, so that the prefix cache fills up and evicts pages.
            return await ask(
                load.server.address, load.body(i, prompt=f"# {rng.random()}\nimport ")
            ) and Answer("whole")
        return await ask(load.server.address, load.body(i, stream=rng.random() < 0.7))

    await load.run(once)
    load.allow({"whole", "left"})
    assert load.growth < GROWTH, load.megabytes


SCENARIOS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "streams": streams,
    "vanish": vanish,
    "slow-readers": slow_readers,
    "bad-network": bad_network,
    "malformed": malformed_bodies,
    "engine-killed": engine_killed,
    "pages": pages_run_out,
    "soak": everything,
}
SMALL_POOL = frozenset({"pages"})  # scenarios that need their own server, with a small pool


async def play(name: str, server: Server, seconds: float, clients: int, seed: int) -> Figures:
    """Runs a scenario and returns its measurements. Raises AssertionError if a requirement fails."""
    load = Load(server, seconds, clients, random.Random(seed))
    before = server.metrics()["nextn:engine_restarts_total"]
    opened = server.descriptors()
    await SCENARIOS[name](load)
    metrics = await server.settled()
    assert server.descriptors() <= opened + FEW, f"{server.descriptors()} files are open, before it {opened}"
    assert server.complaints() == [], server.complaints()
    found = load.summary()
    found["restarts"] = int(metrics["nextn:engine_restarts_total"] - before)
    assert bool(found["restarts"]) == (name == "engine-killed"), found
    return found
