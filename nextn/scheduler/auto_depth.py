"""Automatic draft depth in the scheduler's terms: plans and results for `nextn.speculative.depth`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nextn.request import Request
from nextn.scheduler.plan import Plan, Row, StepResult
from nextn.speculative.depth import DepthController, DraftState

# Positions that a request's draft layer may be behind before it catches up without having to: hidden states
# are kept for them until then, and the prefix cache is not given them.
MOST_OWED = 512
INEXACT = 2  # drafts of a request that is not verified by `exact` and asks for no number


class AutoDepth:
    def __init__(self, controller: DepthController, put_off: bool = True) -> None:
        """put_off: there is a draft layer, whose extends cost something."""
        self._controller, self._put_off = controller, put_off
        self._states: dict[str, DraftState] = {}

    def cut(self, decoding: Sequence[Request], prompt_rows: int) -> list[int]:
        """How many of its drafts each of these requests verifies in this step."""
        states = [self._state(r) for r in decoding]
        return self._controller.cut(states, [len(r.draft) for r in decoding], rows=prompt_rows)

    def settle(self, rows: Sequence[Row], requests: Mapping[str, Request]) -> None:
        """Lowers `draft_next` of the rows that choose to what pays, and puts off draft extends that nothing
        needs yet."""
        choosing = [r for r in rows if r.chooses]
        states = [self._state(requests[r.rid]) for r in choosing]
        for state, row in zip(states, choosing, strict=True):
            state.owed = requests[row.rid].owed
        for state, row, depth in zip(states, choosing, self._controller.propose(states), strict=True):
            row.draft_next = min(row.draft_next, depth)
            if self._put_off:
                row.extend = depth > 0 or state.owed >= MOST_OWED or not requests[row.rid].decoding

    def observe(self, plan: Plan, result: StepResult, seconds: float | None) -> None:
        """seconds: from the end of the step before to the end of this one; None: they were not adjacent."""
        if result.work is None or result.times is None:
            return
        states, verified, accepted = [], [], []
        for row, res in zip(plan.rows, result.rows, strict=True):
            state = self._states.get(row.rid) if row.chooses else None
            if state is not None:
                states.append(state)
                verified.append(row.draft.depth)
                accepted.append(max(0, len(res.tokens) - 1))
        times = result.times if seconds is None else result.times.within(seconds)
        self._controller.observe(states, verified, accepted, result.work, times)

    def forget(self, rid: str) -> None:
        self._states.pop(rid, None)

    def check_integrity(self, requests: Mapping[str, Request]) -> None:
        assert self._states.keys() <= requests.keys()

    def _state(self, req: Request) -> DraftState:
        state = self._states.get(req.rid)
        if state is None:
            fixed = req.params.speculative.num_steps
            if fixed is None and req.params.verify_mode != "exact":
                fixed = INEXACT  # its text depends on where drafts are, which must not depend on the clock
            state = self._states[req.rid] = DraftState(fixed)
        return state
