"""A step's plan, from the scheduler to the executor, and its result, back. Plain data, which may be sent to
another process. A plan has only what is new: the executor keeps the state of each request (`States`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.request import Failure, TokenLogprob
from nextn.speculative.state import RequestState
from nextn.speculative.work import StepWork
from nextn.waits import NO_WAITS, Waits


class States(Protocol):
    """The requests whose state an executor keeps between steps."""

    def add(self, state: RequestState) -> None:
        """Steps may have spans of this request from now on. The executor keeps and changes the state."""

    def drop(self, rid: str) -> None:
        """The request has ended, or has lost its pages and will be added again. No later step has a span of
        it."""


@dataclass(slots=True)
class SpanPlan:
    """A span, one request's part of a step: `known` committed tokens, at positions start, start + 1, ..., and
    after them the nodes of `draft`, in the slots after those.

    chooses: the span contains the last committed token, so the target chooses a token after the root and
    after every draft. Otherwise the span is a prompt chunk.
    pages: the request's page table from index `first_page` on. Earlier entries are unchanged since its last
    span. The pages cover everything that this step may write, including the next drafts.
    scores: indices of prompt tokens; the log-probability of the token after each of them is wanted.
    extend: the draft layer runs over the span's committed positions in this step; if not, see `Plan.keep`.
    ahead: planned before the result of the request's last span was read. The executor continues after that
    span: `start` becomes the root's position, `draft` the draft that the last span proposed, cut to
    `most_drafts` nodes and to the tokens left. If the request ended there, this span has no rows. The
    scheduler fills in `start` and `draft` later, for its own use.
    """

    rid: str
    start: int
    known: int
    draft: Draft
    chooses: bool
    first_page: int
    pages: Sequence[int]
    num_steps: int  # depth of the draft to make for the next step
    scores: range = range(0)
    extend: bool = True
    draft_from: int = 0  # first position that the drafter sees, at the beginning of a page
    cut: bool = False  # the plan's cutoff may make the next draft shorter
    ahead: bool = False
    most_drafts: int = 0

    @property
    def end(self) -> int:
        """The position after the span, if all drafts are accepted."""
        return self.start + self.known + self.draft.depth

    @property
    def drafts(self) -> int:
        """Maximum number of nodes of the draft."""
        return self.most_drafts or len(self.draft.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """cutoff: None if it applies to no span. keep: the drafter keeps the hidden states of spans that do not
    extend, so that it can run over them later. Otherwise it also drops those that it has kept so far."""

    spans: Sequence[SpanPlan]
    cutoff: Cutoff | None = None
    keep: bool = False


@dataclass(slots=True)
class SpanResult:
    """tokens: what the step commits, [accepted drafts ..., bonus]; empty for a prompt chunk.
    draft: the draft for the next step. logprobs: of `tokens`, None if not wanted. prompt_logprobs: one
    for each of the span's `scores`. ended: the request's grammar is complete. error: why the request ends
    after `tokens`, which may be empty then."""

    tokens: list[int]
    draft: Draft
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    ended: bool = False
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """spans: one for each of the plan's, in order. work: what was done; None: unknown. waits: of rank 0."""

    spans: Sequence[SpanResult]
    work: StepWork | None = None
    waits: Waits = NO_WAITS

    @property
    def ran(self) -> bool:
        """Whether the step had rows. It has none if all its requests ended in the step before."""
        return bool(self.spans) and (self.work is None or self.work.rows > 0)
