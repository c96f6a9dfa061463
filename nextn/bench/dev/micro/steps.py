"""Measures whole steps of the engine: one row (decode), k + 1 rows (verify), a prompt chunk, and one row for
each of many requests.

A step is one call of Engine.step: plan, run, commit. In every second step the ops or, for a native model, the
calls are timed (`op_clock`). The overhead is the step's time less the time in ops and less the cost of the
timers: Python, batch building, bookkeeping and small tensor code between the ops; with plain torch also the
choice of tokens.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nextn.bench.dev.micro.arithmetic import Shares, of_torch
from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.ceilings import Ceilings
from nextn.bench.dev.micro.clock import NATIVE, SWITCH, by_team, quiet
from nextn.bench.dev.micro.native_shares import step_shares
from nextn.bench.dev.micro.native_work import native_step_work
from nextn.bench.dev.micro.op_clock import NativeClock, OpClock
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.step_work import Step, step_work
from nextn.bench.prompts import all_heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.engine.model import own_nextn_layers
from nextn.engine.runner import Runner
from nextn.families.config import ModelConfig
from nextn.models.native import NativeModel
from nextn.request import Request, SamplingParams
from nextn.tokenizer import Tokenizer

PROMPT = 256  # tokens before the measured steps, at most; fewer if the context is too short
SHORT = 32  # the same, for steps of many requests
REQUESTS = (64, 32, 16, 8, 4)  # numbers of requests at once; between them some requests are ended
BETWEEN = 8  # pairs of steps between two samples of the ceiling; a sample is followed by an uncounted step


@dataclass
class Samples:
    """Samples of pairs of steps: one plain step, and one whose ops are timed."""

    plain: list[float] = field(default_factory=list)  # seconds
    in_ops: list[float] = field(default_factory=list)  # seconds of the timed step
    overhead: list[float] = field(default_factory=list)  # seconds of the timed step
    ends: list[float] = field(default_factory=list)  # positions in the cache, including the step's rows
    committed: list[int] = field(default_factory=list)
    experts: list[float] = field(default_factory=list)
    ops: dict[str, list[float]] = field(default_factory=dict)  # seconds in each op, by name
    calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepMeasurement:
    """The results of one kind of step. Times are medians, in seconds. seconds: a plain step's time. in_ops,
    overhead: a timed step's time in ops, and the rest of it."""

    name: str
    rows: int
    end: int
    seconds: float
    in_ops: float
    overhead: float
    committed: float  # mean number of tokens
    experts: float  # mean number of experts read, each counted once in each layer's pass
    dtype: torch.dtype
    work: Work
    shares: Shares  # of its operations, by arithmetic
    ops: dict[str, float]  # op -> seconds of a step
    calls: dict[str, int]  # op -> calls in a step
    steps: int  # number of measured pairs


class Running:
    """Requests of an engine that run until they are aborted. length: the mean number of tokens of each."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.count, self.length = engine, 0, 0.0

    def add(self, count: int, prompt: Callable[[int], list[int]]) -> None:
        """Starts `count` requests and runs until each has its first token. prompt(n): the n-th prompt."""
        waiting, tokens = {f"decode {n}" for n in range(count)}, 0
        params = SamplingParams(max_tokens=10**9, temperature=0, ignore_eos=True)
        for n in range(count):
            tokens += len(prompt(n))
            self.engine.add(Request(f"decode {n}", prompt(n), params))
        while waiting:
            for out in self.engine.step():
                tokens += len(out.tokens)
                if out.tokens:
                    waiting.discard(out.rid)
        self.count, self.length = count, tokens / count

    def advance(self, took: int) -> None:
        """Updates `length` after a step. took: tokens that the step committed, over all requests."""
        self.length += took / self.count

    def keep(self, count: int) -> None:
        """Aborts requests, the last ones first, until `count` are left."""
        for n in range(count, self.count):
            self.engine.abort(f"decode {n}")
        self.count = count


class StepBench:
    """Measures steps on engines that it builds one after another. Raises ValueError for a model without
    ops (`fake`)."""

    def __init__(self, config: EngineConfig, ceilings: Ceilings, steps: int, seconds: float) -> None:
        """steps: pairs of steps of each kind; fewer if `seconds` are over."""
        # Automatic depth would change the number of rows, and all measured steps must have the same.
        drafts = config.speculation.num_steps
        if config.speculation.auto:
            drafts = 2 if can_draft(config) else 0
        self.config = dataclasses.replace(config, disable_radix_cache=True, speculative_num_steps=drafts)
        self.ceilings, self.steps, self.seconds = ceilings, steps, seconds
        self.text = tokens_of_text(config)

    def run(self) -> list[StepMeasurement]:
        """Measures all kinds of steps; verification only if the model can draft."""
        off = dataclasses.replace(self.config, speculative_num_steps=0)
        plain = Engine(off)
        found = [self.decode(plain), self.prefill(plain), *self.together(plain)]
        del plain
        if self.config.speculation.num_steps:
            engine = Engine(self.config)
            if engine.speculation.num_steps:
                found.insert(1, self.decode(engine))
        return found

    def run_decode(self) -> StepMeasurement:
        """Measures only the step of one row."""
        return self.decode(Engine(dataclasses.replace(self.config, speculative_num_steps=0)))

    def decode(self, engine: Engine) -> StepMeasurement:
        """Measures steps of one request: the root and its drafts."""
        running = Running(engine)
        running.add(1, self.prompts(engine, 1, PROMPT))
        found = self.one_kind(running, self.steps, self.seconds)
        running.keep(0)
        return found

    def together(self, engine: Engine) -> list[StepMeasurement]:
        """Measures steps with one row for each of n requests, for every n of REQUESTS that the engine can run
        at once. Results are in ascending order of n."""
        counts = [n for n in REQUESTS if n <= self.config.max_running_requests]
        if not counts:
            return []
        running, found = Running(engine), []
        running.add(counts[0], self.prompts(engine, len(counts), SHORT))
        steps, seconds = max(3, self.steps // len(counts)), self.seconds / len(counts)
        for count in counts:
            running.keep(count)
            found.append(self.one_kind(running, steps, seconds))
        running.keep(0)
        return found[::-1]

    def prompts(self, engine: Engine, kinds: int, most: int) -> Callable[[int], list[int]]:
        """`prompts_for` all steps of `kinds` kinds."""
        return prompts_for(engine, self.text, 2 * self.steps + self.steps // BETWEEN + 8 * kinds, most)

    def one_kind(self, running: Running, steps: int, seconds: float) -> StepMeasurement:
        """Measures pairs of steps of the running requests."""
        engine, count = running.engine, running.count
        drafts = engine.speculation.num_steps
        samples, clock = Samples(), clock_of(engine)
        begin = time.perf_counter()
        with quiet():
            for n in range(steps):
                if n >= 3 and time.perf_counter() - begin > seconds:
                    break
                if n % BETWEEN == 0:
                    self.look()
                    running.advance(timed(engine)[1])
                plain, took = timed(engine)
                samples.plain.append(plain)
                samples.ends.append(running.length + drafts)
                samples.committed.append(took)
                running.advance(took)
                running.advance(timed_ops(engine, clock, samples))
        rows = count * (drafts + 1)
        name = f"verify {drafts} drafts" if drafts else "decode" if count == 1 else f"decode {count} requests"
        return self.measurement(engine, name, rows, rows, samples, count)

    def prefill(self, engine: Engine) -> StepMeasurement:
        """Measures the step that computes a whole prompt, of the maximum length of a chunk, and its first
        token."""
        rows = min(self.config.chunked_prefill_size, engine.context_length - 1)
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        samples, clock = Samples(), clock_of(engine)
        begin = time.perf_counter()
        with quiet():
            for n in range(max(3, self.steps // 8)):
                if n >= 3 and time.perf_counter() - begin > self.seconds:
                    break
                self.look()
                engine.add(Request(f"plain {n}", excerpt(self.text, rows, n), params))
                plain, took = timed(engine)
                samples.plain.append(plain)
                samples.ends.append(rows)
                samples.committed.append(took)
                engine.add(Request(f"timed {n}", excerpt(self.text, rows, n), params))
                timed_ops(engine, clock, samples)
        assert not engine.has_work()
        return self.measurement(engine, f"prefill {rows}", rows, 1, samples)

    def look(self) -> None:
        """Samples the read ceiling. It also replaces the model's data in the caches."""
        for case in by_team(sorted(self.ceilings.read, key=lambda case: case.team == NATIVE)):
            case.sample()
        time.sleep(SWITCH)

    def measurement(
        self, engine: Engine, name: str, rows: int, chosen: int, samples: Samples, requests: int = 1
    ) -> StepMeasurement:
        extended, end = statistics.mean(samples.committed), round(statistics.median(samples.ends))
        step = Step(
            rows, end, chosen, statistics.mean(samples.experts), engine.speculation.num_steps, extended,
            requests,
        )  # fmt: skip
        model = model_of(engine)
        parts: Shares
        if isinstance(model, NativeModel):
            work = native_step_work(model, step)
            parts = step_shares(model, step, tuple(self.ceilings.native))
        else:
            work = step_work(model.config, step, model.dtype.itemsize)
            parts = {of_torch(model.dtype): 1.0}
        return StepMeasurement(
            name=name,
            rows=rows,
            end=end,
            seconds=statistics.median(samples.plain),
            in_ops=statistics.median(samples.in_ops),
            overhead=statistics.median(samples.overhead),
            committed=extended,
            experts=step.experts,
            dtype=model.dtype,
            work=work,
            shares=parts,
            ops={op: statistics.median(seconds) for op, seconds in samples.ops.items()},
            calls=samples.calls,
            steps=len(samples.plain),
        )


def timed(engine: Engine) -> tuple[float, int]:
    """Runs one step and returns its seconds and the tokens that it committed."""
    begin = time.perf_counter()
    outputs = engine.step()
    return time.perf_counter() - begin, sum(len(out.tokens) for out in outputs)


def timed_ops(engine: Engine, clock: CallClock, samples: Samples) -> int:
    """Runs one step with its ops timed and returns the tokens that it committed."""
    clock.reset()
    with clock:
        seconds, took = timed(engine)
    samples.in_ops.append(clock.total)
    samples.overhead.append(seconds - clock.total - clock.own)
    samples.experts.append(clock.experts)
    samples.calls = dict(clock.calls)
    for op, spent in clock.seconds.items():
        samples.ops.setdefault(op, []).append(spent)
    return took


def runner_of(engine: Engine) -> Runner:
    runner = engine._executor
    assert isinstance(runner, Runner), "steps are measured in this process"
    return runner


def model_of(engine: Engine) -> Any:
    """The engine's model. Raises ValueError if it computes nothing (`fake`)."""
    model = runner_of(engine).model
    if not isinstance(model, NativeModel) and not hasattr(model, "ops"):
        raise ValueError(f"--model-path {engine.config.model_path} has no arithmetic to measure")
    return model


def clock_of(engine: Engine) -> CallClock:
    model = model_of(engine)
    return NativeClock(runner_of(engine)) if isinstance(model, NativeModel) else OpClock(model.ops)


def can_draft(config: EngineConfig) -> bool:
    """Whether there is a drafter: n-grams, a draft folder, or the model's own MTP layer."""
    if config.speculation.ngrams or config.drafter_path is not None:
        return True
    folder = model_folder(config.model_path)
    return own_nextn_layers(config, ModelConfig.from_folder(folder), folder) > 0


def prompts_for(engine: Engine, text: list[int], steps: int, most: int) -> Callable[[int], list[int]]:
    """Makes prompts, of at most `most` tokens of `text`. They leave room in the context for `steps` steps.
    Raises ValueError if the context is too short."""
    room = engine.context_length - steps * (engine.speculation.num_steps + 1)
    if room < 1:
        raise ValueError(f"a context of {engine.context_length} tokens is too short for {steps} steps")
    length = min(most, room)
    return lambda n: excerpt(text, length, n * length)


def excerpt(text: list[int], length: int, start: int) -> list[int]:
    """`length` tokens of the text from `start` on. After its end, it begins again."""
    text = text[start % len(text) :] + text[: start % len(text)]
    return (text * -(-length // len(text)))[:length]


def tokens_of_text(config: EngineConfig) -> list[int]:
    """Tokens of held-out code, so that experts are used as in practice; random ids without a tokenizer."""
    folder = model_folder(config.model_path)
    if (folder / "tokenizer.json").exists():
        return Tokenizer.from_folder(folder).encode("".join(all_heldout_prompts()[:16]))
    vocabulary = ModelConfig.from_folder(folder).vocab_size
    ids: list[int] = np.random.default_rng(0).integers(0, vocabulary, 4096).tolist()
    return ids
