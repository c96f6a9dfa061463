"""Adds up the time of steps by phase, and the time in which ranks waited for each other."""

from __future__ import annotations

from nextn.scheduler.plan import Plan, StepResult
from nextn.waits import NO_WAITS, Phase


class StepPhases:
    """totals: by phase (`nextn.waits.PHASES`); empty as long as no rank has waited for another one.

    A step with rows of a prompt is of phase `prefill`, also if other requests decode in it. A step without
    rows is `idle`: the engine takes part because other engines share its experts."""

    def __init__(self) -> None:
        self.totals: dict[str, Phase] = {}

    def stepped(self, plan: Plan, result: StepResult, seconds: float) -> None:
        if result.waits is not NO_WAITS:
            name = phase_of(plan, result)
            self.totals[name] = self.totals.get(name, Phase()).plus(Phase(seconds, result.waits))


def phase_of(plan: Plan, result: StepResult) -> str:
    if not result.ran:
        return "idle"
    return "prefill" if any(s.known > 1 or not s.chooses for s in plan.spans) else "decode"
