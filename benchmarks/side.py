"""Engines that take short turns in one process, so that a busy neighbour slows all alike.

Where the weights and buffers of an engine lie makes it up to a tenth faster or slower than its like, for as
long as it lives. `sharing` gives all sides the same ones: one executor, of whose pages each side has a part.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import NamedTuple

from depth_claims import NO_COST_FILE

from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.around import Around
from nextn.engine.build import make_executor
from nextn.engine.device import engine_device
from nextn.engine.engine import Engine
from nextn.engine.executor import Executor, Ticket
from nextn.engine.memory import CPU_KV_TOKENS
from nextn.request import Request, SamplingParams
from nextn.scheduler.plan import Plan
from nextn.tokenizer.tokenizer import Tokenizer

AUTO = -1
TURN = 0.06  # seconds
LENGTHS = (64, 192)  # tokens of a text
PROMPTS, PROMPT_TOKENS = 64, 64  # of held-out code; tokens at most


class Turn(NamedTuple):
    tokens: int
    steps: int
    seconds: float


def load_prompts(model_path: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(model_path))
    return [tokenizer.encode(text)[:PROMPT_TOKENS] for text in heldout_prompts(PROMPTS)]


class Part(Around):
    """An executor of one of several engines that share one. The ids of their requests must differ."""

    def __init__(self, own: Executor, number: int, parts: int) -> None:
        super().__init__(own)
        pages = own.info.pages // parts
        self._before = number * pages
        self.info = replace(own.info, pages=pages)

    def launch(self, plan: Plan) -> Ticket:
        spans = [replace(s, pages=[p + self._before for p in s.pages]) if s.pages else s for s in plan.spans]
        return super().launch(replace(plan, spans=spans))


def sharing(
    config: EngineConfig, num_steps: Sequence[int], prompts: Sequence[Sequence[int]], temperature: float = 0.0
) -> list[Side]:
    """A side for each of `num_steps`. On a GPU, whose steps are captured for one engine, each has its own
    executor."""
    if engine_device(config.device).type != "cpu":
        return [Side(config, each, prompts, temperature) for each in num_steps]
    tokens, parts = config.kv_cache_tokens or CPU_KV_TOKENS, len(num_steps)
    whole = make_executor(
        replace(config, speculative_num_steps=AUTO, kv_cache_tokens=parts * tokens, **NO_COST_FILE)
    )
    executors = iter([Part(whole, i, parts) for i in range(parts)])
    return [
        Side(config, each, prompts, temperature, make_executor=lambda _: next(executors))
        for each in num_steps
    ]


class Side:
    """num_steps: drafts per step, or AUTO. name: by default what num_steps is."""

    def __init__(
        self,
        config: EngineConfig,
        num_steps: int,
        prompts: Sequence[Sequence[int]],
        temperature: float = 0.0,
        name: str | None = None,
        make_executor: Callable[[EngineConfig], Executor] = make_executor,
    ) -> None:
        self.name = name or ("auto" if num_steps == AUTO else str(num_steps))
        self.prompts, self.temperature = prompts, temperature
        config = replace(config, speculative_num_steps=num_steps, **NO_COST_FILE)
        self.engine = Engine(config, make_executor)
        self.requests = 0
        self.live: list[str] = []  # the oldest first
        self._paused = time.perf_counter()
        self.busy = 0.0  # seconds in its turns

    def load(self, concurrency: int, seed: int, keep: int = 0) -> None:
        """A new load, the same for every side. keep: so many of the running requests, the oldest, go on."""
        for rid in self.live[keep:]:
            self.engine.abort(rid)
        del self.live[keep:]
        self.rng = random.Random(seed)
        self.concurrency = concurrency

    def turn(self, at_least: float = TURN, least_steps: int = 0) -> Turn:
        tokens = steps = 0
        begin = time.perf_counter()
        if self.engine._ended is not None:  # for the engine, time stands still in the others' turns
            self.engine._ended += begin - self._paused
        while (seconds := time.perf_counter() - begin) < at_least or steps < least_steps or self._tries():
            while len(self.live) < self.concurrency:
                self._add()
            for out in self.engine.step():
                tokens += len(out.tokens)
                if out.finish_reason is not None:
                    self.live.remove(out.rid)
            steps += 1
        self._paused = time.perf_counter()
        self.busy += seconds
        return Turn(tokens, steps, seconds)

    def _tries(self) -> bool:
        """Is a trial of automatic depth under way? What the drafter keeps for its end, steps of other sides
        would drop."""
        auto = self.engine._scheduler.depth.auto
        return auto is not None and bool(auto._trial)

    def _add(self) -> None:
        rid = f"{self.name} {self.requests}"
        self.requests += 1
        self.live.append(rid)
        params = SamplingParams(
            max_tokens=self.rng.randint(*LENGTHS), temperature=self.temperature, ignore_eos=True,
            seed=self.rng.randrange(1 << 30),
        )  # fmt: skip
        self.engine.add(Request(rid, list(self.rng.choice(self.prompts)), params))


def measure(sides: Sequence[Side], concurrency: int, rounds: int, at_least: float = TURN) -> dict[str, float]:
    """Speed of each side, in units that all share. The first quarter of the rounds is warm-up.

    at_least: seconds of a turn."""
    for side in sides:
        side.load(concurrency, seed=concurrency)
    names = [side.name for side in sides]
    tokens, steps = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    took: dict[str, list[float]] = {name: [] for name in names}
    for at in range(rounds):
        turns = {s.name: s.turn(at_least) for s in random.sample(sides, len(sides))}
        if at < rounds // 4:
            continue
        usual = mean(turn.seconds / turn.steps for turn in turns.values())
        for name, turn in turns.items():
            tokens[name] += turn.tokens
            steps[name] += turn.steps
            took[name].append(turn.seconds / turn.steps / usual)
    return {name: tokens[name] / steps[name] / median(took[name]) for name in names}
