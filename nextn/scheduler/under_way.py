"""Steps that have been planned and not committed yet: one while the engine waits, and for a moment two.

If the next plan is made before they are committed, it has to know where the span of each request begins. A
prompt chunk begins where the last one ends. A request that chooses tokens in an uncommitted step continues
from a root that is not known yet. Its next span has an upper bound: all drafts are accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from nextn.draft import MAX_DRAFTS, NO_DRAFT, Shape
from nextn.request import Request
from nextn.scheduler.plan import Plan, SpanPlan

NO_SCORES = range(0)


class UnderWay:
    """Truthy if there is such a step. short: pages ran out; nothing is planned until all is committed."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._steps: deque[tuple[list[Request | None], bool]] = deque()
        self._last: dict[str, SpanPlan] = {}  # the spans of the last plan
        self.short = False

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def full(self) -> bool:
        """Whether the first of these steps must be committed before another is planned."""
        return len(self._steps) > 1 or (self.short and bool(self._steps))

    def add(self, spans: Sequence[SpanPlan], by_rid: Mapping[str, Request], drafting: bool) -> None:
        """drafting: whether requests with automatic depth make drafts."""
        if spans:  # otherwise nothing will be committed
            self._steps.append(([by_rid[span.rid] for span in spans], drafting))
            self._last = {span.rid: span for span in spans}

    def take(self, plan: Plan) -> tuple[list[Request | None], bool]:
        """Removes the first step, to commit it. Returns its requests, None for each that has left since, and
        `drafting` as passed to `add`."""
        found = self._steps.popleft() if plan.spans else ([], False)
        if not self._steps:
            self._last, self.short = {}, False
        return found

    def leave(self, req: Request) -> None:
        """The request no longer runs: it ended, was aborted or was retracted."""
        self._last.pop(req.rid, None)
        for requests, _ in self._steps:
            if req in requests:
                requests[requests.index(req)] = None

    def of(self, req: Request) -> SpanPlan | None:
        return self._last.get(req.rid)

    def split(self, running: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        """(requests that will be decoding after these steps, the others)"""
        decoding: list[Request] = []
        others: list[Request] = []
        last = self._last
        for req in running:
            span = last.get(req.rid) if last else None
            (decoding if (req.decoding if span is None else span.chooses) else others).append(req)
        return decoding, others

    def end(self, req: Request) -> int:
        """Where its next span begins; after an uncommitted choice, the last possible position."""
        span = self._last.get(req.rid)
        return req.committed if span is None else span.end

    def left(self, req: Request) -> int:
        """Tokens to compute before it decodes. The prefix cache, which is looked up later, may have some."""
        return len(req.tokens) - self.end(req)

    def unscored(self, req: Request) -> int | None:
        """The first prompt position that must be computed for its log-probability; None: there is none."""
        if req.params.prompt_logprobs is None:
            return None
        span = self._last.get(req.rid)
        scored = len(req.prompt_logprobs) + (0 if span is None else len(span.scores))
        return None if scored == req.num_prompt - 1 else scored

    def scores(self, req: Request, start: int, end: int) -> range:
        """For a span of positions `start` to `end`: where the next token's log-probability is wanted."""
        unscored = self.unscored(req)
        if unscored is None:
            return NO_SCORES
        return range(unscored - start, min(end, req.num_prompt - 1) - start)

    def most_drafts(self, span: SpanPlan, req: Request, most: int) -> int:
        """Maximum nodes of the draft that this span of the request proposes, at most `most`."""
        made = self._shape.size(span.num_steps) if span.num_steps else 0
        if req.grammar is not None:  # if it leaves no choice, its tokens are the draft
            made = max(made, MAX_DRAFTS)
        return made if made < most else most

    def resolve(self, req: Request) -> bool:
        """Fills in the beginning of the request's last span, now that the span before it is committed. False
        if there is no such span."""
        span = self._last.get(req.rid)
        if span is None:
            return False
        if span.ahead:
            span.start = req.committed
            if req.draft is not NO_DRAFT:
                span.draft = req.draft.cut(span.most_drafts, req.limit - len(req.tokens) - 1)
        return True
