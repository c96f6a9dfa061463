"""Times given calls of a step. The rest of the step's time is its overhead."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any


class CallClock:
    """A context manager: within it the methods are timed. If one timed method calls another, only the outer
    call counts."""

    def __init__(self, methods: Sequence[tuple[Any, str]]) -> None:
        """methods: (object, name of its method or function)."""
        self._timed = [(on, {name: self.timer(name, getattr(on, name))}) for on, name in methods]
        self._before: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
        self.reset()
        self.cost = self._cost()
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = False

    @property
    def experts(self) -> float:
        """Experts read since `reset`, each counted once in each layer's call. The unit is an expert of the
        target; an expert of the drafter can have fewer bytes."""
        raise AssertionError("a clock of no model")

    @property
    def own(self) -> float:
        """Seconds of the timers themselves, outside of the calls that they time."""
        return self.cost * sum(self.calls.values())

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def __enter__(self) -> CallClock:
        # An attribute of the instance hides the class's method, so all users of the object call the timers.
        for on, timed in self._timed:
            held = vars(on)
            self._before.append((held, {name: held[name] for name in timed if name in held}))
            held.update(timed)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for (held, before), (_, timed) in zip(self._before, self._timed, strict=True):
            for name in timed:
                del held[name]
            held.update(before)
        self._before.clear()

    def _cost(self) -> float:
        """Measures a timer's cost, in seconds: a timed empty call less the time that the timer counts."""
        nothing = self.timer("nothing", lambda *args: None)
        rounds = []
        for _ in range(20):
            self.reset()
            begin = time.perf_counter()
            for _ in range(100):
                nothing(0, 0, 0)
            rounds.append((time.perf_counter() - begin - self.total) / 100)
        return statistics.median(rounds)

    def timer(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            if self._inside:
                return call(*args, **named)
            self._inside = True
            begin = time.perf_counter()
            result = call(*args, **named)
            self.seconds[name] += time.perf_counter() - begin
            self._inside = False
            self.calls[name] += 1
            return result

        return timed
