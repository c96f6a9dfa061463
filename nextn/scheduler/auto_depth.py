"""Automatic draft depth in the scheduler's terms: requests and steps for `speculative.depth` and `.gated`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nextn.draft import Draft
from nextn.gate import Gate
from nextn.request import Request
from nextn.scheduler.plan import StepResult
from nextn.speculative.depth import DepthController, DraftState
from nextn.speculative.gated import GatedController

# Positions that a request's draft layer may be behind before it catches up without having to: hidden states
# are kept for them until then, and the prefix cache is not given them.
MOST_OWED = 512
INEXACT = 2  # drafts of a request that is not verified by `exact` and asks for no number


class AutoDepth:
    def __init__(self, controller: DepthController | GatedController, put_off: bool = True) -> None:
        """put_off: there is a draft layer, whose extends cost something."""
        self._controller, self._put_off = controller, put_off
        self._states: dict[str, DraftState] = {}

    def state(self, req: Request) -> DraftState:
        """Its `depth`: drafts that the request is to get in the step that is being planned."""
        return self._states.get(req.rid) or self._enter(req)

    def extends(self, req: Request, depth: int) -> bool:
        """Does the draft layer take in the step's positions, though nothing may need them yet?"""
        return depth > 0 or not self._put_off or req.owed >= MOST_OWED or not req.decoding

    @property
    def gate(self) -> Gate | None:
        """What the next drafts of requests without a fixed depth may be cut short by."""
        return self._controller.gate

    def note(self, req: Request, draft: Draft, accepted: int) -> None:
        """So many leading guesses of the draft held."""
        self._controller.note(self._states[req.rid], draft.depth, accepted, draft.bins)

    def stepped(self, result: StepResult, seconds: float | None, running: Iterable[Request]) -> None:
        """seconds: from the end of the step before to the end of this one; None: they were not adjacent."""
        if result.work is None:
            return
        self._controller.step(result.work, seconds)
        if self._controller.due(result.work.requests):
            decoding = [r for r in running if r.decoding]
            states = [self.state(r) for r in decoding]
            for state, req in zip(states, decoding, strict=True):
                state.owed = req.owed
            self._controller.plan(states)

    def forget(self, rid: str) -> None:
        self._states.pop(rid, None)

    def check_integrity(self, requests: Mapping[str, Request]) -> None:
        assert self._states.keys() <= requests.keys()

    def _enter(self, req: Request) -> DraftState:
        fixed = req.params.speculative.num_steps
        if fixed is None and req.params.verify_mode != "exact":
            fixed = INEXACT  # its text depends on where drafts are, which must not depend on the clock
        state = self._states[req.rid] = DraftState(fixed)
        self._controller.enter(state)
        return state
