"""An engine of numbers for `nextn.speculative.depth`: what steps cost and what drafts are worth is written
down, so that the controller can be held against policies that know it.

Time and tokens are counted as expected, without noise; what the controller is told is drawn: which drafts
hold, and times that scatter, with now and then a step that takes a multiple. Acceptance belongs to the text:
it depends on the request and on how many tokens it has come to, not on the step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.depth import DepthController, DraftState

MOST = 8
KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)  # rows whose cost is looked at
LENGTH = 500
Cost = Callable[[float], float]


@dataclass(frozen=True)
class Machine:
    """Milliseconds of the parts of a step, by rows."""

    name: str
    target: Cost
    extend: Cost
    draft: Cost
    fixed: float

    def seconds(self, work: StepWork) -> float:
        target = self.target(work.rows) / 1e3
        extend = self.extend(work.extended) / 1e3 if work.extended else 0.0
        draft = sum(self.draft(n) for n in work.passes) / 1e3
        return target + extend + draft + self.fixed / 1e3


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
    return [first * by**j for j in range(MOST)]


def drifting(request: int, tokens: float) -> Sequence[float]:
    return falling(0.5 + 0.42 * math.sin(tokens / 500 + request))


TEXTS: dict[str, Text] = {
    "easy": lambda i, t: falling(0.92),
    "medium": lambda i, t: falling(0.7),
    "hard": lambda i, t: falling(0.3),
    "hopeless": lambda i, t: falling(0.02),
    "drifting": drifting,
    "two kinds": lambda i, t: falling(0.9 if i % 2 else 0.3),
    "hard, then easy": lambda i, t: falling(0.1 if t < 2500 else 0.92),
}


@dataclass
class Run:
    """tokens and seconds since the warm-up's end."""

    tokens: float = 0.0
    seconds: float = 0.0
    proposed: int = 0
    steps: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Simulation:
    """Requests on a machine; where one ends, after LENGTH tokens or so, the next one takes its place. With
    `spread`, a text's drafts differ: each one's own probability is drawn around the rate (a beta
    distribution: the smaller, the further), and the drafter tells it, overconfident."""

    def __init__(
        self, machine: Machine, text: Text, requests: int, seed: int = 0, spread: float = 0.0
    ) -> None:
        self.machine, self.text, self.n, self.spread = machine, text, requests, spread
        self.luck = random.Random(seed)
        self.tokens = [0.0] * requests
        self.owed = [0] * requests
        self.drafts: list[list[float]] = [[] for _ in range(requests)]  # conditional probabilities
        self.ends = [LENGTH * (0.5 + self.luck.random()) for _ in range(requests)]
        self.new: list[int] = []  # places whose request has just begun

    def probe(self) -> StepCosts:
        """The table that an engine would measure at start-up."""

        def points(cost: Cost) -> dict[int, float]:
            return {n: cost(n) / 1e3 * self.luck.lognormvariate(0, 0.02) for n in KNOTS}

        m = self.machine
        return StepCosts(points(m.target), points(m.extend), points(m.draft), m.fixed / 1e3)

    def step(self, kept: Sequence[int], depths: Sequence[int]) -> tuple[float, list[int], StepWork]:
        """Verifies `kept` of the drafts in hand, makes `depths` new ones: expected tokens, drafts that held,
        work."""
        expected, held, extended = 0.0, [], 0
        self.new.clear()
        for i, (drafts, v, d) in enumerate(zip(self.drafts, kept, depths, strict=True)):
            gain = 1.0 + sum(accumulate(drafts[:v], mul))
            a = 0
            while a < v and self.luck.random() < drafts[a]:
                a += 1
            held.append(a)
            expected += gain
            self.tokens[i] += gain
            self.owed[i] += a + 1
            if d:
                extended += self.owed[i]
                self.owed[i] = 0
            if self.tokens[i] >= self.ends[i]:
                self.ends[i] += LENGTH
                self.owed[i] = 0
                self.new.append(i)
            self.drafts[i] = [self._draft(p) for p in self.text(i, self.tokens[i])[:d]]
        passes = [sum(d > j for d in depths) for j in range(1, max(depths))]
        return expected, held, StepWork(self.n + sum(kept), extended, passes)

    def _draft(self, rate: float) -> float:
        if not self.spread:
            return rate
        return self.luck.betavariate(rate / self.spread + 1e-3, (1 - rate) / self.spread + 1e-3)

    def noisy(self, seconds: float) -> float:
        slow = 4.0 if self.luck.random() < 0.01 else 1.0
        return seconds * slow * self.luck.lognormvariate(0, 0.05)


def run_auto(sim: Simulation, warm_up: int, tokens: float, controller: DepthController | None = None) -> Run:
    """Until the requests have come to `tokens` each on average; the first `warm_up` tokens do not count."""
    controller = controller or DepthController(sim.probe())
    states = [DraftState() for _ in range(sim.n)]
    for state in states:
        controller.enter(state)
    run = Run()
    while sum(sim.tokens) < tokens * sim.n:
        for i in sim.new:
            states[i] = DraftState()
            controller.enter(states[i])
        depths = [s.depth for s in states]
        verified = [len(d) for d in sim.drafts]
        expected, held, work = sim.step(verified, depths)
        for s, v, a in zip(states, verified, held, strict=True):
            if v:
                s.note(v, a)
        seconds = sim.machine.seconds(work)
        controller.step(work, sim.noisy(seconds))
        if controller.due(sim.n):
            for s, owed in zip(states, sim.owed, strict=True):
                s.owed = owed
            controller.plan(states)
        if sum(sim.tokens) >= warm_up * sim.n:
            run.tokens += expected
            run.seconds += seconds
            run.proposed += sum(depths)
            run.steps += 1
    return run


def run_fixed(sim: Simulation, warm_up: int, tokens: float, depth: int | None) -> Run:
    """The same depth for all. None: in each step the best one for the texts as they are then, by trying them
    all."""
    run = Run()
    while sum(sim.tokens) < tokens * sim.n:
        d = best_depth(sim) if depth is None else depth
        expected, _, work = sim.step([len(x) for x in sim.drafts], [d] * sim.n)
        if sum(sim.tokens) >= warm_up * sim.n:
            run.tokens += expected
            run.seconds += sim.machine.seconds(work)
            run.proposed += d * sim.n
            run.steps += 1
    return run


def best_depth(sim: Simulation) -> int:
    rates = [list(accumulate(sim.text(i, t), mul)) for i, t in enumerate(sim.tokens)]

    def speed(d: int) -> float:
        tokens = sim.n + sum(sum(r[:d]) for r in rates)
        work = StepWork(sim.n * (1 + d), round(tokens) if d else 0, [sim.n] * (d - 1))
        return tokens / sim.machine.seconds(work)

    return max(range(MOST + 1), key=speed)
