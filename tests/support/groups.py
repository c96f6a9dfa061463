"""The engines of --enable-dp-attention as threads of one process, each in the loop of an engine process.

    with Groups(config(groups=2, each=1, shards=2)) as engines:
        first, second = engines.serve([AtOnce(jobs), AtOnce([])])

The first rank of a group is its thread; the others are processes as usual. An engine that misses another
one's pulse would end this process, so nobody listens for pulses. If a group fails, all others raise PeerGone.
"""

from __future__ import annotations

import dataclasses
import random
import select
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from nextn.distributed.group import PeerGone
from nextn.distributed.memory import HEADER
from nextn.distributed.place import Place, places
from nextn.distributed.shared import address
from nextn.engine.engine import Engine
from nextn.engine.executor import Wakes
from nextn.engine.lockstep import LockstepExecutor
from nextn.engine.thread import ThreadExecutor
from nextn.grammar.compiler import GrammarCompiler
from nextn.ops.cpu.library import library
from nextn.request import SamplingParams, TokenLogprob
from nextn.server.process.engine_process import loop, make_engine
from nextn.server.process.messages import (
    Abort,
    Add,
    FromEngine,
    NewRequest,
    Rejected,
    StepOutputs,
    Stop,
    ToEngine,
    add_of,
)
from nextn.server_config import ServerConfig
from nextn.stats import SpecStats

STALLED = 60.0  # seconds without a step in any group, after which the test fails


def config(groups: int, each: int, shards: int, **options: Any) -> ServerConfig:
    """The configuration of every group. each: ranks in a group."""
    ranks = {"tp_size": groups * each, "ep_size": shards}
    if groups > 1:
        ranks |= {"dp_size": groups, "enable_dp_attention": True}
    common = {"threads": 1, "grammar_backend": "none", "step_cost_cache": "off"}
    made = ServerConfig(**common, **ranks, **options)
    made.check()
    return made.of_replica()


@dataclass(frozen=True)
class Job:
    rid: str
    tokens: list[int]
    params: SamplingParams

    @property
    def message(self) -> Add:
        return add_of([NewRequest(self.rid, list(self.tokens), self.params)])


Text = tuple[list[int], list[TokenLogprob], str | None]  # tokens, log-probabilities, reason of the end


@dataclass
class Answer:
    """spec: what the request's steps verified and accepted, if any output said so."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: str | None = None
    spec: SpecStats | None = None
    cached: int = 0

    @property
    def text(self) -> Text:
        return self.tokens, self.logprobs, self.reason


class Player(Protocol):
    """Decides which messages come to a group, and when."""

    def next(self, idle: bool) -> list[ToEngine]:
        """The messages that have come when the engine looks. idle: the engine has nothing to do."""

    @property
    def over(self) -> bool:
        """Whether no more messages will come."""


class AtOnce:
    """All jobs come at the first look."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.messages: list[ToEngine] = [job.message for job in jobs]

    def next(self, idle: bool) -> list[ToEngine]:
        messages, self.messages = self.messages, []
        return messages

    @property
    def over(self) -> bool:
        return not self.messages


class AnyTime:
    """Jobs come in random order at random times, from a seed. Jobs of `aborted` are aborted at random times,
    perhaps after they have ended. pause: maximum of looks of an idle group between two jobs."""

    def __init__(self, jobs: Sequence[Job], aborted: Sequence[Job], seed: int, pause: int = 6) -> None:
        self._random, self._pause = random.Random(seed), pause
        self._coming = [*jobs, *aborted]
        self._random.shuffle(self._coming)
        self._rids = {job.rid for job in aborted}
        self._aborts: list[str] = []
        self._looks = self._random.randint(0, pause)

    def next(self, idle: bool) -> list[ToEngine]:
        found: list[ToEngine] = []
        if self._aborts and self._random.random() < 0.1:
            found.append(Abort(self._aborts.pop(self._random.randrange(len(self._aborts)))))
        self._looks -= 1
        while self._coming and self._looks < 0:
            job = self._coming.pop()
            found.append(job.message)
            self._aborts += {job.rid} & self._rids
            self._looks += self._random.choice([0, 0, 1, 2, self._pause])
        return found

    @property
    def over(self) -> bool:
        return not self._coming and not self._aborts


@dataclass
class Found:
    """The outputs of a group, by request. steps: all steps, including those in which it had nothing to do;
    idle: number of those."""

    answers: dict[str, Answer] = field(default_factory=dict)
    steps: int = 0
    idle: int = 0
    retracted: int = 0

    @property
    def texts(self) -> dict[str, Text]:
        return {rid: answer.text for rid, answer in self.answers.items()}

    @property
    def specs(self) -> dict[str, SpecStats | None]:
        return {rid: answer.spec for rid, answer in self.answers.items()}


class Link:
    """Replaces an engine process's socket: see `nextn.server.process.engine_process.Link`."""

    def __init__(self, player: Player, all_over: threading.Event, retracts: bool) -> None:
        self.retracts = retracts
        self.found, self._player, self._all_over = Found(), player, all_over
        self.open: set[str] = set()

    @property
    def over(self) -> bool:
        return self._player.over and not self.open

    def receive(
        self, wait: bool, milliseconds: int = 0, wakes: Wakes | None = None, agent: object = None
    ) -> list[ToEngine]:
        if wait:
            if self._all_over.is_set():
                return [Stop()]
            if wakes is None:
                time.sleep(0.001)
            else:
                select.select([wakes], [], [], 0.001)
                wakes.hear()
        messages = self._player.next(wait)
        for message in messages:
            if isinstance(message, Add):
                self.open |= {new.rid for new in message.requests}
                self.found.answers |= {new.rid: Answer() for new in message.requests}
            else:
                self.open.discard(getattr(message, "rid", ""))
        return messages

    def send(self, message: FromEngine) -> None:
        if isinstance(message, StepOutputs):
            for out in [*message.tokens, *message.outputs]:
                answer = self.found.answers[out.rid]
                answer.tokens += out.tokens
                answer.logprobs += out.logprobs or []
                answer.cached, answer.reason = out.cached_tokens, out.finish_reason
                answer.spec = cast(SpecStats | None, out.spec)
                if answer.reason is not None:
                    self.open.discard(out.rid)
        else:
            assert isinstance(message, Rejected), message
            self.found.answers[message.rid].reason = message.message
            self.open.discard(message.rid)


def keep_up(engine: Engine) -> bool:
    """Runs a step if other groups need one: they may still measure step costs, or serve already. Returns
    whether it did."""
    if engine.wakes is not None:
        engine.wakes.hear()
    if not engine.must_step():
        return False
    engine.step()
    return True


def retract_sometimes(engine: Engine, first: int) -> None:
    """After every fifth step, retracts the last running request in order. first: number of steps before."""
    scheduler = engine._scheduler
    if (engine.stats().steps - first) % 5 == 0 and len(scheduler.running) > 1:
        scheduler._retract(scheduler.running[-1])


class Group(threading.Thread):
    """A thread that makes the engine and lives as long as it does: ranks end with the thread that started
    them."""

    def __init__(self, config: ServerConfig, place: Place | None) -> None:
        super().__init__(name=f"group {0 if place is None else place.group}", daemon=True)
        self.config, self.place = config, place
        self.engine: Engine | None = None
        self.links: list[Link] = []
        self.work, self.ready = threading.Semaphore(0), threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        executor: Any = None
        try:
            self.engine = make_engine(self.config, self.place)
            executor = self.engine._executor
            self.ready.set()
            while True:
                needed = False
                while not self.work.acquire(timeout=0 if needed else 0.001):
                    needed = keep_up(self.engine)
                if not self.links:
                    break
                self._serve(self.engine, self.links[-1])
                self.ready.set()
        except BaseException as e:
            self.error = e
            self.give_up()
        finally:
            self.ready.set()
            if self.config.nnodes > 1 and executor is not None:
                executor.wakes.leave()
            own = executor if self.place is None else getattr(executor, "_own", None)
            getattr(own, "close", lambda: None)()

    def _serve(self, engine: Engine, link: Link) -> None:
        step, before = engine.step, dataclasses.replace(engine.stats())

        def counted() -> Any:
            link.found.steps += 1
            link.found.idle += not engine.has_work()
            found = step()
            if link.retracts:
                retract_sometimes(engine, before.steps)
            return found

        engine.step = counted  # type: ignore[method-assign]
        loop(engine, link, GrammarCompiler(self.config, engine.vocab_size, engine.eos_token_ids))  # type: ignore[arg-type]
        engine.step = step  # type: ignore[method-assign]
        link.found.retracted = engine.stats().retracted - before.retracted

    def give_up(self) -> None:
        """Makes every engine that waits for another group raise PeerGone."""
        if self.place is not None:
            header = self.place.memory.mapped(HEADER)
            library().nx_break(address(header))

    @property
    def state(self) -> str:
        if self.engine is None:
            return f"{self.name} has no engine"
        executor: Any = self.engine._executor
        steps = self.links[-1].found.steps if self.links else 0
        awake = "awake" if executor.awake else "asleep"
        work = "has work" if self.engine.has_work() else "has no work"
        return f"{self.name} is {awake}, {work}, in its step {steps}, {getattr(executor, '_step', 0)} in all"


class Groups:
    """Engines that serve several lists of players, one after another."""

    def __init__(self, config: ServerConfig) -> None:
        self._undo = ExitStack()
        self.config = config
        each: list[Any] = [None]
        if config.attention_dp > 1:
            each = self._undo.enter_context(places(config.attention_dp))
        self.each = [Group(config, place) for place in each]
        self._wait(None)
        if len(self.each) > 1 and config.nnodes == 1:  # with several nodes, ranks would miss the pulse
            self._stop_pulses()

    def serve(self, players: Sequence[Player], retracts: bool = False) -> list[Found]:
        """Returns when every request has ended and all groups sleep. Raises AssertionError if no group makes
        a step for a minute. retracts: requests are retracted now and then."""
        all_over = threading.Event()
        links = [Link(player, all_over, retracts) for player in players]
        for group, link in zip(self.each, links, strict=True):
            group.ready.clear()
            group.links.append(link)
            group.work.release()
        self._wait(all_over)
        for group in self.each:
            assert group.engine is not None
            group.engine.check_integrity()
            assert not group.engine.has_work()
        return [link.found for link in links]

    def flush(self) -> None:
        for group in self.each:
            assert group.engine is not None
            assert group.engine.flush_cache()

    def _wait(self, all_over: threading.Event | None) -> None:
        """Waits until all groups are ready. all_over: set when all requests have ended."""
        seen, since = -1, time.monotonic()
        while not all(group.ready.wait(0.01) for group in self.each):
            if all_over is not None and all(group.links[-1].over for group in self.each):
                all_over.set()
            steps = sum(link.found.steps for group in self.each for link in group.links)
            if steps != seen:
                seen, since = steps, time.monotonic()
            elif time.monotonic() - since > STALLED:
                states = "; ".join(group.state for group in self.each)
                self._end()
                raise AssertionError(f"no step in {STALLED:g} s: {states}")
            if any(group.error for group in self.each):
                for group in self.each:
                    group.give_up()
        errors = [group.error for group in self.each if group.error is not None]
        if errors:
            self._end()
            raise next((e for e in errors if not isinstance(e, PeerGone)), errors[0])

    def _stop_pulses(self) -> None:
        for group in self.each:
            executor: Any = group.engine and group.engine._executor
            if isinstance(executor, ThreadExecutor):
                executor = executor._own
            if isinstance(executor, LockstepExecutor):
                executor.others.pulse.stop()

    def _end(self) -> None:
        if self.config.nnodes > 1:
            self._stop_pulses()  # because groups end one after another
        for group in self.each:
            group.give_up()
            group.links.clear()
            group.work.release()
        for group in self.each:
            group.join(10)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._undo.close()
