"""The steps that have been planned and not committed: one while the engine waits, two for a moment.

A plan that is made meanwhile needs to know of a request where its span begins. A part of a prompt goes on
where the last one ends. A request that chooses in the step under way goes on from a root that nobody knows
yet, so what can be said of its next span are bounds: it begins behind all drafts, if they all hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from nextn.draft import MAX_DRAFTS, NO_DRAFT, Shape
from nextn.request import Request
from nextn.scheduler.plan import Plan, SpanPlan

NO_SCORES = range(0)


class UnderWay:
    """Truthy while there is such a step. short: pages ran out; nothing more is planned until all is
    committed."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._steps: deque[tuple[list[Request | None], bool]] = deque()
        self._last: dict[str, SpanPlan] = {}  # the spans of the last plan
        self.short = False

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def full(self) -> bool:
        """Has the first of them to be committed before another is planned?"""
        return len(self._steps) > 1 or (self.short and bool(self._steps))

    def add(self, spans: Sequence[SpanPlan], by_rid: Mapping[str, Request], drafting: bool) -> None:
        """drafting: do requests draft that leave it to the controller?"""
        if spans:  # else nothing will be committed
            self._steps.append(([by_rid[span.rid] for span in spans], drafting))
            self._last = {span.rid: span for span in spans}

    def take(self, plan: Plan) -> tuple[list[Request | None], bool]:
        """The first of them is about to be committed: its requests, None for each that left since, and what
        `add` was told."""
        found = self._steps.popleft() if plan.spans else ([], False)
        if not self._steps:
            self._last, self.short = {}, False
        return found

    def leave(self, req: Request) -> None:
        """It runs no more: it ended, was aborted or was retracted."""
        self._last.pop(req.rid, None)
        for requests, _ in self._steps:
            if req in requests:
                requests[requests.index(req)] = None

    def of(self, req: Request) -> SpanPlan | None:
        return self._last.get(req.rid)

    def split(self, running: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        """Those that will be decoding after that, and the others."""
        decoding: list[Request] = []
        others: list[Request] = []
        last = self._last
        for req in running:
            span = last.get(req.rid) if last else None
            (decoding if (req.decoding if span is None else span.chooses) else others).append(req)
        return decoding, others

    def end(self, req: Request) -> int:
        """Where its next span begins, or, of a request that chooses, the furthest place."""
        span = self._last.get(req.rid)
        return req.committed if span is None else span.end

    def left(self, req: Request) -> int:
        """Tokens that it computes before it decodes, or less where the cache is still to be asked."""
        return len(req.tokens) - self.end(req)

    def unscored(self, req: Request) -> int | None:
        """The first position whose logits are still wanted, and so must be computed; None: none is."""
        if req.params.prompt_logprobs is None:
            return None
        span = self._last.get(req.rid)
        scored = len(req.prompt_logprobs) + (0 if span is None else len(span.scores))
        return None if scored == req.num_prompt - 1 else scored

    def scores(self, req: Request, start: int, end: int) -> range:
        """Of a span of positions `start` to `end`: where the next token's logits are wanted."""
        unscored = self.unscored(req)
        if unscored is None:
            return NO_SCORES
        return range(unscored - start, min(end, req.num_prompt - 1) - start)

    def most_drafts(self, span: SpanPlan, req: Request, most: int) -> int:
        """Nodes of the draft that this span of the request proposes, at most `most`."""
        made = self._shape.size(span.num_steps) if span.num_steps else 0
        if req.grammar is not None:  # one that leaves no choice makes drafts of its own
            made = max(made, MAX_DRAFTS)
        return made if made < most else most

    def resolve(self, req: Request) -> bool:
        """The request's span before the last has been committed, so it is known where the last begins. False
        if there is none."""
        span = self._last.get(req.rid)
        if span is None:
            return False
        if span.ahead:
            span.start = req.committed
            if req.draft is not NO_DRAFT:
                span.draft = req.draft.cut(span.most_drafts, req.limit - len(req.tokens) - 1)
        return True
