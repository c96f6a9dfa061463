"""Times cases in turns, so that a disturbance of the machine affects all of them. Medians are reported.

Every round takes one sample of each case. A sample is a burst of calls, long enough for the clock. The calls
use different copies of the weights in turns. One call before each sample is not counted: it absorbs the
effects of the case before it, for example on the caches. The garbage collector is off.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nextn.bench.dev.micro.op_work import Work

BURST = 2e-3  # minimum seconds of a sample
LONGEST = 1000  # maximum calls of a burst
DEAR = 20e-3  # a case whose sample takes n times this long is measured in every nth round
SWITCH = 8e-3  # seconds after which a team's threads sleep; they spin for a while after their work
TORCH, NATIVE = "torch", "native"  # teams of threads
FEWEST = 3  # minimum number of rounds, even if the time is over


@dataclass
class Case:
    """Something to time. `calls`: the same work on different copies of the weights; they are called in turns.
    team: the team of threads that computes it."""

    name: str
    work: Work
    calls: Sequence[Callable[[], object]]
    samples: list[float] = field(default_factory=list)  # seconds of one call
    team: str = TORCH
    _next: int = 0

    def burst(self, count: int) -> float:
        """Makes `count` calls and returns their seconds."""
        calls, at = self.calls, self._next
        chosen = [calls[(at + i) % len(calls)] for i in range(count)]
        self._next = (at + count) % len(calls)
        begin = time.perf_counter()
        for call in chosen:
            call()
        return time.perf_counter() - begin

    def sample(self, count: int = 1) -> None:
        self.samples.append(self.burst(count) / count)

    @property
    def seconds(self) -> float:
        """The median seconds of one call."""
        return statistics.median(self.samples)

    @property
    def bytes_per_s(self) -> float:
        return self.work.bytes / self.seconds

    @property
    def flops_per_s(self) -> float:
        return self.work.flops / self.seconds


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within this context the garbage collector is off."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def measure(
    cases: Sequence[Case],
    rounds: int,
    seconds: float,
    progress: Callable[[int, int], None] = lambda n, of: None,
) -> None:
    """Measures in `rounds` rounds, or fewer if `seconds` are over, but at least FEWEST. Slow cases are not
    measured in every round (see DEAR). `seconds` includes the time to find the number of calls of each
    sample. progress(n, of): called when round n of `of` begins."""
    with quiet():
        begin = time.perf_counter()
        counts, costs = [], []
        for case in cases:
            case.burst(1)
            once = case.burst(1)
            count = max(1, min(LONGEST, int(BURST / max(once, 1e-7))))
            counts.append(count)
            costs.append(once * count)
        every = [max(1, min(int(cost / DEAR), rounds // FEWEST)) for cost in costs]
        for n in range(rounds):
            if n >= FEWEST and time.perf_counter() - begin > seconds:
                break
            progress(n, rounds)
            chosen = [i for i, turn in enumerate(every) if n % turn == 0]
            for i, case in zip(chosen, by_team(cases[i] for i in chosen), strict=True):
                if costs[i] < DEAR:
                    case.burst(1)
                case.sample(counts[i])


def by_team(cases: Iterable[Case]) -> Iterator[Case]:
    """Yields the cases in order and pauses between cases of different teams: the spinning threads of the team
    before would take the cores."""
    last = None
    for case in cases:
        if last not in (None, case.team):
            time.sleep(SWITCH)
        last = case.team
        yield case
