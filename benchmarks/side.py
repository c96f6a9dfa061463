"""Engines that take short turns in one process, so that other work on the machine slows all of them equally.

Two identical engines can differ by up to 10 % for as long as they run, depending on the addresses of their
weights and buffers. `sharing` gives all sides the same ones: they share one executor, and each side has a
part of its pages.
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
PROMPTS, PROMPT_TOKENS = 64, 64  # number of prompts of held-out code, and maximum tokens of each


class Turn(NamedTuple):
    tokens: int
    steps: int
    seconds: float


def load_prompts(model_path: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(model_path))
    return [tokenizer.encode(text)[:PROMPT_TOKENS] for text in heldout_prompts(PROMPTS)]


class Part(Around):
    """The executor of one of several engines that share an executor. The engines' request ids must differ."""

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
    """Makes a side for each of `num_steps`. On a GPU each side has its own executor, because steps are
    captured for one engine."""
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
    """An engine and its requests. num_steps: drafts per step, or AUTO. name: by default num_steps or
    "auto"."""

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
        self.live: list[str] = []  # ids of running requests, the oldest first
        self._paused = time.perf_counter()
        self.busy = 0.0  # total seconds of its turns

    def load(self, concurrency: int, seed: int, keep: int = 0) -> None:
        """Starts a new load, the same for every side with the same seed. keep: number of running requests
        that continue, the oldest first; the others are aborted."""
        for rid in self.live[keep:]:
            self.engine.abort(rid)
        del self.live[keep:]
        self.rng = random.Random(seed)
        self.concurrency = concurrency

    def turn(self, at_least: float = TURN, least_steps: int = 0) -> Turn:
        tokens = steps = 0
        begin = time.perf_counter()
        if self.engine._ended is not None:  # the engine must not count the time of the other sides' turns
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
        """Whether a trial of automatic depth is running. A turn must not end within it: steps of other sides
        would drop the hidden states that the drafter keeps for the trial's end."""
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
    """Speed of each side, in a unit common to all sides. The first quarter of the rounds is warm-up.

    at_least: minimum seconds of a turn."""
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
