"""The draft depth of each request: its own setting, or the decision of automatic depth's controller."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.request import Request
from nextn.scheduler.plan import SpanPlan
from nextn.speculative.depth.controller import DepthController

# Depth of a request in another verify mode than `exact` that sets no depth: its text depends on the depths of
# drafts, which must not depend on time measurements.
INEXACT = 2


class Depth:
    def __init__(self, num_steps: int, auto: DepthController | None) -> None:
        """num_steps: draft depth of requests that do not set their own; 0: there is no drafter. With `auto`
        it is the maximum, and `auto` decides the depth."""
        self.num_steps, self.auto = num_steps, auto

    def most(self, req: Request) -> int:
        """The maximum draft depth of the request in a step; 0 if there is no drafter."""
        asked = req.params.speculative.num_steps
        return self.num_steps if asked is None else asked * (self.num_steps > 0)

    def enter(self, req: Request) -> None:
        """Sets what is fixed about the drafts of a new request: its depth, or that it is automatic."""
        params, req.num_steps = req.params, self.most(req)
        if self.auto is not None and params.speculative.num_steps is None:
            req.automatic = params.verify_mode == "exact"
            req.num_steps = min(self.num_steps, INEXACT)

    def now(self, req: Request) -> int:
        """The request's draft depth now."""
        auto = self.auto
        if auto is None or not req.automatic:
            return req.num_steps
        return min(self.num_steps, auto.num_steps) if auto.drafting else 0

    def cutoff(self, spans: Sequence[SpanPlan]) -> Cutoff | None:
        """The controller's cutoff, if the next drafts of some of these spans may be cut."""
        auto = self.auto
        return auto.cutoff if auto is not None and auto.drafting and any(s.cut for s in spans) else None

    def note(self, draft: Draft, accepted: int) -> None:
        """Reports to the controller how many guesses of a draft were accepted, for a request whose depth is
        automatic."""
        if self.auto is not None and not draft.forced:
            self.auto.note(draft, accepted)
