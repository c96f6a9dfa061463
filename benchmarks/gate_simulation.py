"""depth_simulation.py where drafts are gated guess by guess, for `nextn.speculative.gated`.

Of a text is drawn how far each guess is ahead, and whether it holds. Where a chain ends is up to the gate, by
the rule of csrc/guesses.h. The cost table is that of a rehearsal whose parts were off, each by a factor of
its own; the machine's speed wanders. Prompts take no time.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

from depth_simulation import Cost, Machine, Simulation, Told

from nextn.engine.rehearsal import REQUESTS, SETTINGS, costs_of
from nextn.gate import EDGES, Gate
from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.gated import GatedController

LENGTH = 128  # tokens of a request
TABLE_OFF = 0.3  # each kind of part, in the cost table, as a logarithm
WANDER, BACK = 0.01, 0.98  # of the machine's speed, from step to step: by 0.05 in the long run

# Straight lines in all that drafts change, so that expected costs are the costs of what is expected.
GATED_MACHINES = {
    m.name: m
    for m in (
        # nextn-tiny on two cores with AMX, about; and where a neighbour takes half of them
        Machine(
            "quiet host",
            target=lambda n: 0.08 * n,
            extend=lambda n: 0.08 + 0.013 * n,
            draft=lambda n: 0.15 + 0.008 * n,
            fixed=0.0,
            request=lambda n: min(0.5 + 0.12 * n, 0.88 + 0.025 * n),
            at_all=0.06,
        ),
        Machine(
            "busy host",
            target=lambda n: 0.076 * n,
            extend=lambda n: 0.2 + 0.03 * n,
            draft=lambda n: 0.4 + 0.01 * n,
            fixed=0.0,
            request=lambda n: min(1.0 + 0.324 * n, 1.76 + 0.134 * n),
            at_all=0.1,
        ),
        Machine(
            "dear rows",
            target=lambda n: 0.2 * n,
            extend=lambda n: 0.2 + 0.05 * n,
            draft=lambda n: 0.3 + 0.05 * n,
            fixed=0.3,
            request=lambda n: 0.05 * n,
            at_all=0.05,
        ),
        Machine(
            "memory-bound",
            target=lambda n: 10.0 + 0.02 * n,
            extend=lambda n: 0.2 + 0.005 * n,
            draft=lambda n: 0.3 + 0.005 * n,
            fixed=0.1,
        ),
    )
}


@dataclass(frozen=True)
class LeadText:
    """Guesses by the bin of their lead: their shares, and how often they hold."""

    shares: Sequence[float]
    rates: Sequence[float]

    @property
    def rate(self) -> float:
        """Of a guess of which nothing is known."""
        return sum(map(mul, self.shares, self.rates))


_SHARES = (0.17, 0.13, 0.11, 0.10, 0.15, 0.12, 0.14, 0.06, 0.02)
GATED_TEXTS = {
    # as with nextn-tiny on code
    "medium": LeadText(_SHARES, (0.43, 0.66, 0.80, 0.89, 0.95, 0.97, 0.995, 0.997, 0.999)),
    "hard": LeadText(_SHARES, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    "hopeless": LeadText(_SHARES, (0.02,) * (len(EDGES) + 1)),
}
OPEN = Gate((1.0,) * (len(EDGES) + 1), keep=0.0, usual=1.0, each=0.0, passing=0.0)


@dataclass
class Chain:
    """bins: of the guesses that were made. kept: how many of these are to be verified. holds: the probability
    that all of them do, by the gate."""

    bins: bytearray = field(default_factory=bytearray)
    kept: int = 0
    holds: float = 1.0


def guess(gate: Gate, depths: Sequence[int], bin_of_next: Callable[[], int]) -> tuple[list[Chain], list[int]]:
    """A chain for each request, of `depths` guesses at most, cut as csrc/guesses.h does; and the rows of
    every pass beyond the first."""
    chains = [Chain() for _ in depths]
    going = [(chain, depth) for chain, depth in zip(chains, depths, strict=True) if depth]
    rows, made = [], 0
    while going:
        rows.append(len(going))
        made += 1
        worth, left = 0.0, []
        for chain, depth in going:
            k = bin_of_next()
            chain.bins.append(k)
            chain.holds *= gate.rates[k]
            if chain.holds < gate.keep:
                continue
            chain.kept = made
            gain = chain.holds * gate.usual - gate.each
            if made < depth and gain > 0.0:
                worth += gain
                left.append((chain, depth))
        going = left if worth > gate.passing else []
    return chains, rows[1:]


class GatedSimulation(Simulation):
    noise = 0.1

    def __init__(self, machine: Machine, text: LeadText, requests: int, seed: int = 0) -> None:
        super().__init__(machine, requests, seed, LENGTH)
        self.text, self._upto = text, list(accumulate(text.shares))[:-1]
        self.chains = [Chain() for _ in range(requests)]
        self._slow = 0.0

    def controller(self) -> GatedController:
        return GatedController(self._rehearsed())

    def step(self, depths: Sequence[int], gate: Gate | None = None) -> tuple[float, list[Told], StepWork]:
        expected, told, extended = 0.0, [], 0
        self.new.clear()
        for i, (chain, depth) in enumerate(zip(self.chains, depths, strict=True)):
            rates = [self.text.rates[k] for k in chain.bins[: chain.kept]]
            gain, held = 1.0 + sum(accumulate(rates, mul)), self.held(rates)
            told.append(Told(chain.kept, held, bytes(chain.bins)))
            expected += gain
            extended += self.commit(i, gain, held, depth > 0)
        self.chains, passes = guess(gate or OPEN, depths, self._bin)
        rows = sum(t.verified for t in told)
        return expected, told, StepWork(self.n + rows, extended, passes, self.n, rows)

    def noisy(self, seconds: float) -> float:
        self._slow = BACK * self._slow + self.luck.gauss(0, WANDER)
        return super().noisy(seconds * math.exp(self._slow))

    def _bin(self) -> int:
        return bisect(self._upto, self.luck.random())

    def _rehearsed(self) -> StepCosts:
        def off(cost: Cost) -> Cost:
            by = self.luck.lognormvariate(0, TABLE_OFF)
            return lambda n: by * cost(n)

        m = self.machine
        seen = replace(
            m, target=off(m.target), extend=off(m.extend), draft=off(m.draft), request=off(m.request)
        )
        return costs_of(
            {n: {s: seen.seconds(_step(n, *s, held=min(1, s[1]))) for s in SETTINGS} for n in REQUESTS}
        )


def fixed_rate(machine: Machine, text: LeadText, requests: int, depth: int) -> float:
    """Tokens/s with so many drafts in every step, as expected."""
    held = sum(text.rate**j for j in range(1, depth + 1))
    return requests * (1.0 + held) / machine.seconds(_step(requests, depth, depth, held))


def _step(n: int, made: int, verified: int, held: float) -> StepWork:
    """Of n requests, each of which has so many drafts."""
    extended = n * (1 + held) if made else 0  # as expected, perhaps not whole
    return StepWork(n * (1 + verified), extended, [n] * (made - 1), n, n * verified)
