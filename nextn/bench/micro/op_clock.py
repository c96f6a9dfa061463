"""How much of a step is spent in its ops: every op of a backend behind a timer, for a while."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor

from nextn.ops.base import Ops

NAMES = tuple(name for name, value in vars(Ops).items() if callable(value) and not name.startswith("_"))


class OpClock:
    """with clock: ops are timed. An op that calls another is one op: the outer one's time counts."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self._timed = {name: self._timer(name, getattr(ops, name)) for name in NAMES}
        self.reset()
        self.cost = self._cost()
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._routed: list[Tensor] = []  # the expert ids of each call, counted when the step is over
        self._inside = False

    @property
    def experts(self) -> int:
        """That were read, each counted once in each call."""
        return sum(len(ids.unique()) for ids in self._routed)

    @property
    def own(self) -> float:
        """Seconds that the timers themselves took, outside of what they timed."""
        return self.cost * sum(self.calls.values())

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def __enter__(self) -> OpClock:
        # On the instance, so that they stand before the class's own; every layer holds this one instance.
        vars(self.ops).update(self._timed)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in self._timed:
            del vars(self.ops)[name]

    def _cost(self) -> float:
        """Seconds of a timer around nothing, besides what it takes for nothing's own time."""
        nothing = self._timer("nothing", lambda *args: None)
        rounds = []
        for _ in range(20):
            self.reset()
            begin = time.perf_counter()
            for _ in range(100):
                nothing(0, 0, 0)
            rounds.append((time.perf_counter() - begin - self.total) / 100)
        return statistics.median(rounds)

    def _timer(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            if self._inside:
                return op(*args)
            self._inside = True
            begin = time.perf_counter()
            result = op(*args)
            self.seconds[name] += time.perf_counter() - begin
            self._inside = False
            self.calls[name] += 1
            return result

        def counted(x: Tensor, rows: int, ids: Tensor, *rest: Tensor) -> Any:
            self._routed.append(ids[:rows])
            return timed(x, rows, ids, *rest)

        return counted if name == "experts" else timed
