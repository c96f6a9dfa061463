"""An engine of numbers for the controllers of automatic depth: what steps cost and what drafts are worth is
written down, so that a controller can be held against policies that know it.

Time and tokens are counted as expected, without noise; what the controller is told is drawn: which drafts
hold, and times that scatter, with now and then a step that takes a multiple. Acceptance belongs to the text:
it depends on the request and on how many tokens it has come to, not on the step.

Here is what all executors have in common, and those whose drafts are as deep as the controller says
(`nextn.speculative.depth`). Where drafts are gated guess by guess: gate_simulation.py.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from nextn.draft import MOST_DEPTH
from nextn.gate import Gate
from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.depth import DepthController, DraftState
from nextn.speculative.gated import GatedController

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)  # rows whose cost is looked at
LENGTH = 500
Cost = Callable[[float], float]


@dataclass(frozen=True)
class Machine:
    """Milliseconds of the parts of a step, by rows. request: by requests. at_all: what steps with drafts take
    besides, as a share of what they would take without."""

    name: str
    target: Cost
    extend: Cost
    draft: Cost
    fixed: float
    request: Cost = lambda n: 0.0
    at_all: float = 0.0

    def seconds(self, work: StepWork) -> float:
        there = self.fixed + self.request(work.requests)
        extend = self.extend(work.extended) if work.extended else 0.0
        draft = sum(self.draft(n) for n in work.passes)
        at_all = self.at_all * (there + self.target(work.requests)) if work.drafts else 0.0
        return (there + self.target(work.rows) + extend + draft + at_all) / 1e3


def experts(rows: float, many: int = 64, each: int = 6) -> float:
    """Share of the experts that some row wants."""
    return 1.0 - (1.0 - each / many) ** rows


MACHINES = {
    m.name: m
    for m in (
        Machine("memory-bound", lambda n: 20 + 0.02 * n, lambda n: 0.7, lambda n: 0.7, 0.3),
        Machine(
            "compute-bound", lambda n: 1.0 + n, lambda n: 0.05 + 0.04 * n, lambda n: 0.05 + 0.04 * n, 0.1
        ),
        Machine("tiles of 6", lambda n: 4 * math.ceil(n / 6), lambda n: 0.4, lambda n: 0.4, 0.1),
        Machine(
            "experts",
            lambda n: 3 + 24 * experts(n) + 0.05 * n,
            lambda n: 0.3 + 1.2 * experts(n) + 0.01 * n,
            lambda n: 0.5 + 1.2 * experts(n) + 0.01 * n,
            0.2,
        ),
        # nextn-tiny, about as benchmarks/results/micro has it
        Machine(
            "tiny",
            lambda n: 0.02 + 0.235 * n if n < 4 else 0.4 + 0.14 * n,
            lambda n: 0.05 + 0.01 * n,
            lambda n: 0.08 + 0.015 * n,
            0.1,
        ),
    )
}

# (request, tokens it has come to) -> conditional acceptance by depth
Text = Callable[[int, float], Sequence[float]]


def falling(first: float, by: float = 0.96) -> list[float]:
    return [first * by**j for j in range(MOST_DEPTH)]


def steady(first: float) -> Text:
    rates = falling(first)
    return lambda request, tokens: rates


def drifting(request: int, tokens: float) -> Sequence[float]:
    return falling(0.5 + 0.42 * math.sin(tokens / 500 + request))


TEXTS: dict[str, Text] = {
    "easy": steady(0.92),
    "medium": steady(0.7),
    "hard": steady(0.3),
    "hopeless": steady(0.02),
    "drifting": drifting,
    "two kinds": lambda i, t: falling(0.9 if i % 2 else 0.3),
    "hard, then easy": lambda i, t: falling(0.1 if t < 2500 else 0.92),
}


@dataclass
class Run:
    """tokens and seconds since the warm-up's end. proposed: drafts that were verified."""

    tokens: float = 0.0
    seconds: float = 0.0
    proposed: int = 0
    steps: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Told(NamedTuple):
    """Of a request's draft in a step: as `note` of the controllers takes it."""

    verified: int = 0
    accepted: int = 0
    bins: bytes = b""


class Simulation(ABC):
    """Requests on a machine; where one ends, after `length` tokens or so, the next one takes its place."""

    noise = 0.05  # of a step's time, as a logarithm

    def __init__(self, machine: Machine, requests: int, seed: int, length: int) -> None:
        self.machine, self.n, self.length = machine, requests, length
        self.luck = random.Random(seed)
        self.tokens = [0.0] * requests
        self.owed = [0] * requests
        self.ends = [length * (0.5 + self.luck.random()) for _ in range(requests)]
        self.new: list[int] = []  # places whose request has just begun

    @abstractmethod
    def controller(self) -> DepthController | GatedController:
        """A new one, with the table that an engine would measure at start-up."""

    @abstractmethod
    def step(self, depths: Sequence[int], gate: Gate | None = None) -> tuple[float, list[Told], StepWork]:
        """Verifies the drafts in hand and makes new ones, of `depths` at most: expected tokens, what became
        of each request's draft, work."""

    def commit(self, i: int, expected: float, held: int, drafts: bool) -> int:
        """The step's tokens of one request, of whose draft so many held: rows that the draft layer takes in
        if the request `drafts` next."""
        self.tokens[i] += expected
        self.owed[i] += held + 1
        taken = 0
        if drafts:
            taken, self.owed[i] = self.owed[i], 0
        if self.tokens[i] >= self.ends[i]:
            self.ends[i] += self.length
            self.owed[i] = 0
            self.new.append(i)
        return taken

    def noisy(self, seconds: float) -> float:
        slow = 4.0 if self.luck.random() < 0.01 else 1.0
        return seconds * slow * self.luck.lognormvariate(0, self.noise)

    def held(self, probabilities: Sequence[float]) -> int:
        """How many of a draft's guesses hold, each one with its probability if those before it do."""
        return next((j for j, p in enumerate(probabilities) if self.luck.random() >= p), len(probabilities))


class DepthSimulation(Simulation):
    """Drafts are as deep as they are to be, and all of them are verified."""

    def __init__(self, machine: Machine, text: Text, requests: int, seed: int = 0) -> None:
        super().__init__(machine, requests, seed, LENGTH)
        self.text = text
        self.drafts: list[Sequence[float]] = [[] for _ in range(requests)]  # conditional probabilities

    def controller(self) -> DepthController:
        def points(cost: Cost) -> dict[int, float]:
            return {n: cost(n) / 1e3 * self.luck.lognormvariate(0, 0.02) for n in KNOTS}

        m = self.machine
        return DepthController(StepCosts(points(m.target), points(m.extend), points(m.draft), m.fixed / 1e3))

    def step(self, depths: Sequence[int], gate: Gate | None = None) -> tuple[float, list[Told], StepWork]:
        expected, told, extended = 0.0, [], 0
        self.new.clear()
        for i, (drafts, depth) in enumerate(zip(self.drafts, depths, strict=True)):
            gain = 1.0 + sum(accumulate(drafts, mul))
            held = self.held(drafts)
            told.append(Told(len(drafts), held))
            expected += gain
            extended += self.commit(i, gain, held, depth > 0)
            self.drafts[i] = self.text(i, self.tokens[i])[:depth]
        passes = [sum(d > j for d in depths) for j in range(1, max(depths))]
        rows = sum(t.verified for t in told)
        return expected, told, StepWork(self.n + rows, extended, passes, self.n, rows)


def serve(
    sim: Simulation, controller: DepthController | GatedController
) -> Iterator[tuple[float, float, StepWork]]:
    """Step after step: expected tokens, seconds, work."""
    states = [DraftState() for _ in range(sim.n)]
    for state in states:
        controller.enter(state)
    while True:
        for i in sim.new:
            states[i] = DraftState()
            controller.enter(states[i])
        expected, told, work = sim.step([s.depth for s in states], controller.gate)
        for s, t in zip(states, told, strict=True):
            if t.verified or t.bins:
                controller.note(s, *t)
        seconds = sim.machine.seconds(work)
        controller.step(work, sim.noisy(seconds))
        if controller.due(sim.n):
            for s, owed in zip(states, sim.owed, strict=True):
                s.owed = owed
            controller.plan(states)
        yield expected, seconds, work


def run_auto(sim: Simulation, warm_up: int, tokens: float) -> Run:
    """Until the requests have come to `tokens` each on average; the first `warm_up` tokens do not count."""
    run = Run()
    for expected, seconds, work in serve(sim, sim.controller()):
        come_to = sum(sim.tokens) / sim.n
        if come_to >= warm_up:
            run.tokens += expected
            run.seconds += seconds
            run.proposed += work.drafts
            run.steps += 1
        if come_to >= tokens:
            break
    return run


def run_fixed(sim: DepthSimulation, warm_up: int, tokens: float, depth: int | None) -> Run:
    """The same depth for all. None: in each step the best one for the texts as they are then, by trying them
    all."""
    run = Run()
    while sum(sim.tokens) < tokens * sim.n:
        d = best_depth(sim) if depth is None else depth
        expected, _, work = sim.step([d] * sim.n)
        if sum(sim.tokens) >= warm_up * sim.n:
            run.tokens += expected
            run.seconds += sim.machine.seconds(work)
            run.proposed += work.drafts
            run.steps += 1
    return run


def best_depth(sim: DepthSimulation) -> int:
    rates = [list(accumulate(sim.text(i, t), mul)) for i, t in enumerate(sim.tokens)]

    def speed(d: int) -> float:
        tokens = sim.n + sum(sum(r[:d]) for r in rates)
        work = StepWork(sim.n * (1 + d), round(tokens) if d else 0, [sim.n] * (d - 1), sim.n, sim.n * d)
        return tokens / sim.machine.seconds(work)

    return max(range(MOST_DEPTH + 1), key=speed)
