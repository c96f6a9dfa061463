"""Automatic depth beside groups that share the experts: what they draft does not change this group's
decision, although a step begins only when all groups have drafted. On a clock that only steps move."""

from __future__ import annotations

from typing import Any

import pytest

from nextn.config import EngineConfig
from nextn.engine import build
from nextn.engine import engine as loop
from nextn.engine.around import Around
from nextn.engine.engine import Engine
from nextn.engine.executor import Executor, Ran
from nextn.engine.rank import make_runner
from nextn.request import Request, SamplingParams
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.depth.cost import StepCost
from nextn.waits import Waits

# A row costs as much as a step without rows: drafts that hold with a probability of 0.5 do not pay. No sum of
# steps is a limit of the controller exactly, so rounding decides nothing.
COST = StepCost(2.1e-2, 2.3e-2, 0.0, (1, 1), a_pass=1.3e-2, pass_row=1e-3)
LATE = 8.3e-2
STEPS = 120


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class BesideAnother(Around):
    """late: seconds by which the other group is late in each step, because it drafts. tells: whether the
    result says so."""

    def __init__(self, own: Executor, clock: Clock, late: float, tells: bool) -> None:
        super().__init__(own)
        self.clock, self.late, self.tells = clock, late, tells

    def launch(self, plan: Plan) -> Ran:
        found = self._own.launch(plan).result()
        assert found.work is not None
        self.clock.now += COST.base(found.work) + COST.extra(found.work) + self.late
        waits = Waits(step=self.late, others=self.late * self.tells)
        return Ran(StepResult(found.spans, found.work, waits))


def decisions(monkeypatch: pytest.MonkeyPatch, late: float, tells: bool = True) -> list[tuple[bool, int]]:
    """Before each step: whether it drafts, and how deep."""
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(build, "time_steps", lambda *_, **__: (COST, False))

    def make(config: EngineConfig) -> Any:
        return BesideAnother(make_runner(config), clock, late, tells)

    engine = Engine(EngineConfig(model_path="fake:0.5,0.5,0.5", step_cost_cache="off", threads=1), make)
    auto = engine._scheduler.depth.auto
    assert auto is not None
    engine.add(Request("a", [5, 6], SamplingParams(max_tokens=4 * STEPS, ignore_eos=True)))
    found = []
    for _ in range(STEPS):
        found.append((auto.drafting, auto.num_steps))
        engine.step()
    return found


def test_what_another_group_drafts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time counted, drafts would seem to cost less than they do."""
    alone, beside = (decisions(monkeypatch, late) for late in (0.0, LATE))
    assert alone == beside
    assert 1 <= sum(drafting for drafting, _ in alone) < 10  # in a trial
    assert sum(drafting for drafting, _ in decisions(monkeypatch, LATE, tells=False)) > 20
