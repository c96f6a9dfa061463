"""Simulates a load on a machine with known costs, for the draft-length controller.

The time of a step comes from a `StepCost`, and guesses are accepted with a probability that depends on their
confidence. No clock is read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nextn.cutoff import Cutoff
from nextn.draft import DRAFT_WINDOW, NO_DRAFT, Draft
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.depth.value import BIN_RATES, BIN_SHARES
from nextn.speculative.work import StepWork


@dataclass
class Machine:
    """cost: the true cost. noise: standard deviation of a step's time, relative. python: additional seconds
    in every step. ends: whether the end of a chain saves its further passes. It does not on a device for
    which the host does not wait."""

    cost: StepCost
    noise: float = 0.03
    python: float = 0.0
    ends: bool = True


class Load:
    """n requests, each with the draft that the last step made. rates: probability of acceptance of a guess,
    by bin."""

    def __init__(self, machine: Machine, seed: int = 0, rates: Sequence[float] = BIN_RATES) -> None:
        self.machine, self.rng, self.rates = machine, random.Random(seed), rates
        self.drafts: list[tuple[Draft, int]] = []
        self.deferred: list[int] = []

    def resize(self, n: int) -> None:
        """Requests leave, or new ones come that have no positions to catch up."""
        self.drafts = (self.drafts + [(NO_DRAFT, 0)] * n)[:n]
        self.deferred = (self.deferred + [0] * n)[:n]

    def draw(self, cutoff: Cutoff | None, num_steps: int) -> list[int]:
        """Makes drafts for every request. Returns the number of rows of each pass after the first."""
        n = len(self.drafts)
        bins: list[list[int]] = [[] for _ in range(n)]
        kept, holds, passes = [0] * n, [1.0] * n, []
        going = list(range(n))
        for depth in range(num_steps):
            if depth:
                passes.append(len(going) if self.machine.ends else n)
            left, worth, ended = [], 0.0, set(range(n)) - set(going)
            for i in going if self.machine.ends else range(n):
                bins[i].append(self.rng.choices(range(9), BIN_SHARES)[0])
                if i in ended:
                    continue
                if cutoff is not None:
                    holds[i] *= cutoff.rates[bins[i][-1]]
                    if holds[i] < cutoff.row_cost:
                        continue
                    gain = holds[i] * cutoff.mean_rate - cutoff.guess_cost
                    worth += max(0.0, gain)
                    if gain > 0.0:
                        left.append(i)
                else:
                    left.append(i)
                kept[i] += 1
            going = left
            if cutoff is not None and worth <= cutoff.pass_cost:
                going = []
            if not going and self.machine.ends:
                break
        self.drafts = []
        for i in range(n):
            held = 0
            while held < kept[i] and self.rng.random() < self.rates[bins[i][held]]:
                held += 1
            self.drafts.append((Draft([0] * kept[i], bins=bytes(bins[i]) if cutoff else b""), held))
        return passes

    def step(
        self, drafting: bool, cutoff: Cutoff | None, num_steps: int, keeping: bool = False
    ) -> tuple[StepWork, float, int, list[tuple[Draft, int]]]:
        """(work of the step, seconds, tokens, the drafts that were verified and how many of each were
        accepted)."""
        n = len(self.drafts)
        verified = self.drafts
        tokens = n + sum(held for _, held in verified)
        rows = n + sum(len(draft) for draft, _ in verified)
        extended, passes = 0, list[int]()
        if drafting:
            extended = tokens + sum(self.deferred)
            self.deferred = [0] * n
            passes = self.draw(cutoff, num_steps)
        else:
            self.deferred = [min(DRAFT_WINDOW, o + 1) if keeping else 0 for o in self.deferred]
            self.drafts = [(NO_DRAFT, 0)] * n
        work = StepWork(rows, extended, tuple(passes), n, rows - n)
        cost = self.machine.cost
        seconds = (cost.base(work) + cost.extra(work)) * max(0.5, self.rng.gauss(1.0, self.machine.noise))
        return work, seconds + self.machine.python, tokens, verified


@dataclass
class Ran:
    """What a controller did in some time. drafting: number of steps that drafted."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafting: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def watch(
    load: Load,
    controller: DepthController,
    n: int,
    seconds: float,
    timed: Callable[[int], bool] | None = None,
) -> Ran:
    """Runs n requests for `seconds`. timed: for the number of a step, whether the controller gets its
    time."""
    load.resize(n)
    ran = Ran()
    while ran.seconds < seconds:
        drafting = controller.drafting
        work, took, made, verified = load.step(
            drafting, controller.cutoff, controller.num_steps, controller.keeping
        )
        for draft, held in verified:
            if draft is not NO_DRAFT:
                controller.note(draft, held)
        known = timed is None or timed(ran.steps)
        controller.stepped(work, took if known else None)
        ran.seconds += took
        ran.tokens += made
        ran.steps += 1
        ran.drafting += drafting
    return ran


def run(load: Load, controller: DepthController, n: int, seconds: float) -> float:
    """Tokens per second with the controller, over `seconds`."""
    return watch(load, controller, n, seconds).speed


def fixed(machine: Machine, n: int, num_steps: int, steps: int = 400) -> float:
    """Tokens per second with `num_steps` drafts in every step."""
    load = Load(machine)
    load.resize(n)
    at, tokens = 0.0, 0
    for _ in range(steps):
        _, took, made, _ = load.step(num_steps > 0, None, num_steps)
        at += took
        tokens += made
    return tokens / at


def best(machine: Machine, n: int, steps: int = 400) -> tuple[float, float]:
    """Tokens per second without drafts, and with the best depth from 0 to 4."""
    speeds = [fixed(machine, n, num_steps, steps) for num_steps in range(5)]
    return speeds[0], max(speeds)
