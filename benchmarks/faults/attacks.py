"""Runs attacks on a server while an honest client uses it, and reports which requirements failed.

The requirements of each attack: every request ends soon, with an answer, a 4xx or "try again later" (or its
client disconnects); the honest client is served, within twice its usual time; the engine's process stays the
same; the server's processes release the memory that they took.

A real attacker uses another machine. Here it is a separate process. It makes its bodies before the attack and
runs at the lowest priority, so that it takes hardly any time from the server. It repeats the attack for some
seconds, so that the honest client is timed during the attack and not after it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import httpx
from attack_cases import ATTACKS, KEY, KEYED, Attack, Request, encoded
from client import Address, Answer, Hung, ask
from server import Server, family

PAUSE = 0.05  # seconds between two requests of the honest client
STOPPED = "engine-stopped"  # the only attack without requests: the engine's process is stopped
NAMES = (*ATTACKS, STOPPED)
BUSY = "grammars_busy"  # 503, "try again later": a proper answer to a client that sends too much
RESTARTS = "nextn:engine_restarts_total"
SINCE = "nextn:seconds_since_last_step"


@dataclass(frozen=True)
class Rules:
    """limit: seconds after which a request counts as a hang. timed: whether the honest client's time counts.
    megabytes: maximum growth of memory after `patience` seconds. repeat: seconds for which an attack is
    repeated; 0: it runs once. most: maximum number of an attack's requests. nice: the attacker's priority."""

    limit: float = 60.0
    timed: bool = True
    megabytes: float = 50.0
    patience: float = 60.0
    warm: int = 20  # honest requests before an attack
    repeat: float = 3.0
    most: int | None = None
    nice: int = 19


@dataclass
class Report:
    failures: list[str] = field(default_factory=list)
    ended: collections.Counter[str] = field(default_factory=collections.Counter)
    measurements: dict[str, Any] = field(default_factory=dict)

    def need(self, ok: bool, what: str) -> None:
        if not ok:
            self.failures.append(what)

    def result(self) -> dict[str, Any]:
        return {
            "held": not self.failures,
            "failures": self.failures,
            "ended": dict(self.ended),
        } | self.measurements


class Honest:
    """A client that sends one request after another, each with another prompt."""

    def __init__(self, server: Server, attack: Attack, limit: float) -> None:
        self.server, self.attack, self.limit = server, attack, limit
        self.number = 0
        self.headers = f"authorization: Bearer {KEY}\r\n" if attack.options == KEYED else ""

    async def once(self) -> float:
        """Sends one request and returns its seconds. Raises AssertionError if it is not served."""
        self.number += 1
        body = {
            "prompt": f"import os  # {self.number}\n", "max_tokens": 16, "temperature": 0,
            "ignore_eos": True, **self.attack.honest(self.number),
        }  # fmt: skip
        answer = await within(ask(self.server.address, body, headers=self.headers), self.limit)
        assert answer is not None, f"the honest client had no answer for {self.limit:.0f} s"
        assert answer.ended == "whole", f"the honest client's request: {answer.status} {answer.code}"
        return answer.seconds

    async def first_constraint(self) -> None:
        """Sends a first constraint and a first stop_regex. They make the server start the processes that
        compile constraints, which stay."""
        for name in ("guided_regex", "stop_regex"):
            body = {"prompt": "import os", "max_tokens": 4, name: "[a-z]+"}
            answer = await within(ask(self.server.address, body, headers=self.headers), self.limit)
            assert answer is not None, f"an ordinary {name} had no answer"
            assert answer.ended == "whole", f"an ordinary {name}: {answer.status} {answer.code}"

    async def usual(self, count: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(count):
            seconds.append(await self.once())
            await asyncio.sleep(PAUSE)
        return seconds

    async def beside(self, attack: asyncio.Future[Any]) -> list[float]:
        """Sends requests until the attack is over, at least three. Returns their seconds."""
        seconds: list[float] = []
        while not attack.done() or len(seconds) < 3:
            seconds += await self.usual(1)
        return seconds


class Attacker:
    """The process that sends an attack. The constructor starts it; `ready` waits until it has its bodies."""

    def __init__(self, name: str, address: Address, rules: Rules) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=send_attack, args=(theirs, name, address, rules), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        self._link.recv()

    def report(self) -> Report:
        """Sends the attack and returns its results."""
        self._link.send(None)
        report: Report = self._link.recv()
        self._process.join()
        return report


def send_attack(link: Connection, name: str, address: Address, rules: Rules) -> None:
    """The attacker's main function."""
    os.nice(rules.nice)
    chosen = ATTACKS[name]
    requests = [(request, encoded(request)) for request in chosen.make()[: rules.most]]
    link.send(None)
    link.recv()
    link.send(asyncio.run(repeated(address, requests, chosen.refused, rules)))


async def repeated(
    address: Address, requests: list[tuple[Request, bytes]], refused: bool, rules: Rules
) -> Report:
    """Sends all requests at once, and repeats this until the time is over or a requirement fails."""
    report, until = Report(), time.monotonic() + rules.repeat
    while True:
        each = (sent(address, request, body, refused, rules.limit, report) for request, body in requests)
        await asyncio.gather(*each)
        if report.failures or time.monotonic() >= until:
            return report


async def within(answer: Awaitable[Answer], limit: float) -> Answer | None:
    """The answer; None if it takes longer than `limit` seconds."""
    try:
        return await asyncio.wait_for(answer, limit)
    except (asyncio.TimeoutError, Hung):
        return None


async def sent(
    address: Address, request: Request, body: bytes, refused: bool, limit: float, report: Report
) -> None:
    """Sends one request of an attack and adds its result to the report."""
    leaves = request.leaves
    try:
        answer = await within(
            ask(
                address, body, request.path, headers=request.headers,
                leave_after=None if leaves is None else 0, pause=leaves or 0.0,
            ),
            limit,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as e:  # no server, no JSON, or JSON without an error
        report.failures.append(f"{request.path}: no proper answer: {e!r}")
        return
    if answer is None:
        report.ended["hung"] += 1
        report.failures.append(f"{request.path}: no answer within {limit:.0f} s")
        return
    report.ended[f"{answer.ended} {answer.status or ''}".strip()] += 1
    proper = answer.ended in (("error",) if refused else ("error", "whole", "left"))
    failed = answer.status >= 500 and answer.code != BUSY
    if not proper or failed or (answer.ended == "error" and answer.status < 400):
        report.failures.append(f"{request.path}: {answer.ended}, {answer.status} {answer.code}")


async def stopped(server: Server) -> Report:
    """Stops the engine's process for some seconds, under load. The metric SINCE must grow meanwhile."""
    report = Report()
    engine = engine_of(server)
    assert engine is not None, "there is no engine"
    os.kill(engine, signal.SIGSTOP)  # before the request, because a short answer could end at once
    asked = asyncio.create_task(ask(server.address, {"prompt": "import os", "max_tokens": 64}))
    try:
        seen = []
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append((await asyncio.to_thread(server.metrics)).get(SINCE))
        report.measurements["since_last_step"] = seen
        grew = all(a is not None and b is not None and b > a for a, b in itertools.pairwise(seen))
        report.need(grew, f"{SINCE} does not grow while the engine is stopped: {seen}")
    finally:
        os.kill(engine, signal.SIGCONT)
    answer = await asked
    report.need(answer.ended == "whole", f"its request after it went on: {answer.ended} {answer.status}")
    return report


async def play(name: str, server: Server, rules: Rules) -> dict[str, Any]:
    honest = Honest(server, ATTACKS.get(name, Attack(list)), rules.limit)
    attacker = None if name == STOPPED else Attacker(name, server.address, rules)
    await honest.first_constraint()
    if attacker is not None:
        await asyncio.to_thread(attacker.ready)
    peak: list[float] = []
    watching = asyncio.create_task(watch(server, peak))
    usual = await honest.usual(rules.warm)
    before, engine, restarts = family_megabytes(server), engine_of(server), server.metrics()[RESTARTS]
    began = time.monotonic()
    if attacker is None:
        attacking = asyncio.create_task(stopped(server))
        await attacking
    else:
        attacking = asyncio.create_task(asyncio.to_thread(attacker.report))
    failure, during = None, list[float]()
    try:
        during = await honest.beside(attacking)
    except (AssertionError, OSError) as e:
        failure = str(e) or repr(e)
    report = await attacking
    took = time.monotonic() - began
    if failure is not None:
        report.failures.append(failure)
    if during and rules.timed and name != STOPPED:
        times = statistics.median(during) / statistics.median(usual)
        report.need(times <= honest.attack.slower, f"the honest client took {times:.1f} times its usual time")
    same = engine == engine_of(server) and server.metrics()[RESTARTS] == restarts
    report.need(same, f"the engine's process was {engine}, now it is {engine_of(server)}")
    after = await settled(server, before + rules.megabytes, rules.patience)
    report.need(after <= before + rules.megabytes, f"{after - before:.0f} MB more stayed")
    watching.cancel()
    report.need(not server.complaints(), f"the log: {server.complaints()[:3]}")
    report.measurements |= {
        "seconds": round(took, 2),
        "honest_ms": [round(1e3 * statistics.median(s), 1) if s else None for s in (usual, during)],
        "honest_slowest_ms": round(1e3 * max(during), 1) if during else None,
        "megabytes": [round(m, 1) for m in (before, max(peak), after)],
    }
    return report.result()


def engine_of(server: Server) -> int | None:
    """The pid of the engine's process, the first that the server starts; None if there is none."""
    return min(server.pids()[1:], default=None)


def family_megabytes(server: Server) -> float:
    return sum(m for _, m in family(server.pids()[0]))


async def watch(server: Server, peak: list[float]) -> None:
    while True:
        with contextlib.suppress(OSError):
            peak.append(family_megabytes(server))
        await asyncio.sleep(0.25)  # a reading takes milliseconds


async def settled(server: Server, wanted: float, patience: float) -> float:
    """Waits until the memory is at most `wanted`, or until the patience is over. Returns the megabytes."""
    deadline = time.monotonic() + patience
    while True:
        megabytes = family_megabytes(server)
        if megabytes <= wanted or time.monotonic() > deadline:
            return megabytes
        await asyncio.sleep(0.25)


def play_all(names: list[str], options: list[str], rules: Rules) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs the attacks and yields their results one by one. Attacks with the same options share a server
    until one fails."""
    running: tuple[tuple[str, ...], Server] | None = None
    with contextlib.ExitStack() as stack:
        for name in sorted(names, key=lambda n: tuple(options_of(n))):
            wanted = tuple(options_of(name))
            if running is None or running[0] != wanted:
                stack.close()
                running = (wanted, stack.enter_context(Server([*options, *wanted])))
            try:
                result = asyncio.run(play(name, running[1], rules))
            except (OSError, EOFError, AssertionError, ValueError, httpx.HTTPError) as e:
                result = {"held": False, "failures": [f"the server is gone: {e!r}"]}
            yield name, result
            if not result["held"]:
                running = None


def options_of(name: str) -> list[str]:
    return list(ATTACKS[name].options) if name in ATTACKS else []
