"""Clocks for a step: one times the ops of a backend, the other the calls of a native model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.native_work import expert_bytes
from nextn.engine.runner import Runner
from nextn.models.native import NativeModel
from nextn.ops.base import Ops

NAMES = tuple(name for name, value in vars(Ops).items() if callable(value) and not name.startswith("_"))
# Timed methods of the native model. The verifier's choice of tokens (`draw`) is timed too.
NATIVE = ("plain_step", "forward", "logits", "draft_chains", "draft", "draft_logits")


class OpClock(CallClock):
    """Times the ops. All layers of a model hold the same instance of them."""

    def __init__(self, ops: Ops) -> None:
        super().__init__([(ops, name) for name in NAMES])

    def reset(self) -> None:
        super().reset()
        self._routed: list[Tensor] = []  # the expert ids of each call; counting waits until the step is over

    @property
    def experts(self) -> int:
        return sum(len(ids.unique()) for ids in self._routed)

    def timer(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = super().timer(name, call)

        def counted(ids: Tensor, experts: int) -> Any:
            self._routed.append(ids)
            return timed(ids, experts)

        return counted if name == "dispatch" else timed


class NativeClock(CallClock):
    """Times the few calls of a native model's step; it has no ops. The kernels count the experts."""

    def __init__(self, runner: Runner) -> None:
        assert isinstance(runner.model, NativeModel)
        self.model = runner.model
        super().__init__([*((runner.model, name) for name in NATIVE), (runner.verifier, "draw")])

    def reset(self) -> None:
        super().reset()
        self._experts: float | None = None
        self.model.expert_bytes_read()

    @property
    def experts(self) -> float:
        if self._experts is None:
            size = expert_bytes(self.model)
            self._experts = self.model.expert_bytes_read() / size if size else 0.0
        return self._experts
