"""What a server has to live through. Each scenario is a load for some seconds; what must hold is
asserted, and what was seen comes back as figures.

In all of them: no answer but whole ones, clear errors, and what the fault itself broke; every whole greedy
text is the one that its prompt always gets; at the end nothing runs, no page is held, every request is
accounted for, no connection is left open.
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
GROWTH = 48.0  # MiB that a server may grow by while a load goes on, once it is warm
FEW = 4  # files that a server may open for good, such as its log's
KILL_EVERY = 3.0  # seconds, on average
PATIENCE = 120.0  # seconds at most that a load goes on for what it is to bring about

Figures = dict[str, Any]
Once = Callable[[int], Awaitable[Answer]]


@dataclass
class Load:
    """The clients of one scenario and what became of their requests."""

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
    took: float = 0.0  # seconds; the last answers come when the time is over
    more: Figures = field(default_factory=dict)  # of the scenario's own
    max_tokens: int = MAX_TOKENS  # of each answer

    def body(self, number: int, **more: Any) -> dict[str, Any]:
        """Every prompt comes again and again, greedy, so that its texts can be compared."""
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
        """`clients` of them do `once` again and again, longer if on a busy machine `seen` does not hold yet:
        by default, that a request was answered. `beside`: never ends by itself."""
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
                task.result()  # raises what went wrong
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
        """MiB, from the first third to the last tenth."""
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
        """Nothing else may have happened."""
        assert set(self.ended) <= ended, self.ended
        assert set(self.codes) <= (codes or set()), self.codes
        assert self.ended["whole"] > 0, self.ended


async def streams(load: Load) -> None:
    """So many streams at once, and not one error."""
    await load.run(lambda i: ask(load.server.address, load.body(i)))
    load.allow({"whole"})
    assert load.growth < GROWTH, load.megabytes


async def vanish(load: Load) -> None:
    """Clients that leave: in the middle of their request, before their answer, in the middle of it."""
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
    """Half of the clients take their answers a few bytes at a time, and hold up nobody. /generate sends the
    text so far with every token: more than the sockets on the way hold."""

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
    """A proxy between that delays, cuts into pieces, stalls, closes and resets."""
    async with ChaosProxy(load.server.address, load.rng) as proxy:
        await load.run(lambda i: ask(proxy.address, load.body(i, stream=i % 3 > 0)))
    load.allow({"whole", "broken"})
    load.more["fates"] = dict(proxy.fates)


async def engine_killed(load: Load) -> None:
    """The engine dies every few seconds. Its requests get an error at once, later ones 503 until there is
    another."""
    rng = load.rng

    async def kill() -> None:
        while True:
            await asyncio.sleep(KILL_EVERY * (0.5 + rng.random()))
            # One that is starting only now and then: the server waits longer after each that does not start.
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
    """More requests than the pool has pages for: they take turns, and all come to their end."""

    def retracted() -> float:
        return load.server.metrics()["nextn:num_retracted_reqs"]

    # Prompts are let in when they fit. Short answers might never need more pages than happen to be free.
    load.max_tokens = 256
    before = retracted()
    await load.run(lambda i: ask(load.server.address, load.body(i)), seen=lambda: retracted() > before)
    load.allow({"whole"})
    assert retracted() > before, "the pool was large enough for all"


async def malformed_bodies(load: Load) -> None:
    """None is a 500, none stays unanswered. Memory grows by what the answers that came at the same time once
    took: with log-probabilities half a kilobyte for each token on its way."""

    async def once(i: int) -> Answer:
        path, body = malformed(load.rng)
        answer = await ask(load.server.address, body, path)
        assert answer.status < 500 or answer.code == "queue_full", (path, body, answer)
        assert answer.ended != "broken", (path, body, answer)
        answer.text = ""  # not to be compared
        answer.code = None  # of many kinds
        return answer

    await load.run(once)
    load.allow({"whole", "error"})
    assert load.growth < GROWTH, load.megabytes


async def everything(load: Load) -> None:
    """All of it but dead engines, for long: memory stays flat."""
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
            # New each time: the prefix cache fills up and forgets.
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
SMALL_POOL = frozenset({"pages"})  # has a server of its own


async def play(name: str, server: Server, seconds: float, clients: int, seed: int) -> Figures:
    """Raises AssertionError when something happens that must not."""
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
