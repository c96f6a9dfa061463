"""How deep a draft each request gets: as it asks, or as the controller of automatic depth says."""

from __future__ import annotations

from nextn.draft import NO_DRAFT, Draft
from nextn.request import Request
from nextn.speculative.depth.controller import DepthController

# Drafts of a request that is not verified by `exact` and asks for no number: its text depends on where drafts
# are, which must not depend on the clock.
INEXACT = 2


class Depth:
    def __init__(self, num_steps: int, auto: DepthController | None) -> None:
        """num_steps: where a request asks for none of its own; 0: nothing can draft. With `auto` it is the
        most, and `auto` says how much of it."""
        self.num_steps, self.auto = num_steps, auto

    def most(self, req: Request) -> int:
        """How deep a draft the request gets in a step, at most; 0 where nothing can draft."""
        asked = req.params.speculative.num_steps
        return self.num_steps if asked is None else asked * (self.num_steps > 0)

    def enter(self, req: Request) -> None:
        """Decides about the drafts of a request that comes in, as far as that does not change later."""
        params, req.num_steps = req.params, self.most(req)
        if self.auto is not None and params.speculative.num_steps is None:
            req.automatic = params.verify_mode == "exact"
            req.num_steps = min(self.num_steps, INEXACT)

    def now(self, req: Request) -> int:
        """How deep a draft it is to get now."""
        auto = self.auto
        if auto is None or not req.automatic:
            return req.num_steps
        return min(self.num_steps, auto.num_steps) if auto.drafting else 0

    def note(self, draft: Draft, accepted: int) -> None:
        """So many guesses of a draft held, of a request for which the controller decides."""
        if self.auto is not None and draft is not NO_DRAFT and not draft.forced:
            self.auto.note(draft, accepted)
