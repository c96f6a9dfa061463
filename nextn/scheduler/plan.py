"""A step's plan and its result: what the scheduler asks for and what the executor answers. Plain data, which
may cross to another process: what a request has had before is the executor's to know (`States`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.request import Failure, TokenLogprob
from nextn.speculative.state import RequestState
from nextn.speculative.work import StepWork


class States(Protocol):
    """What an executor knows of requests between steps, in the order of these calls."""

    def add(self, state: RequestState) -> None:
        """Steps may have spans of this request from now on. The executor keeps and changes the state."""

    def drop(self, rid: str) -> None:
        """The request has ended, or lost its pages and will be added again. No step has a span of it any
        more."""


@dataclass(slots=True)
class SpanPlan:
    """A span, one request's part of a step: `known` committed tokens, at positions start, start + 1, ..., and
    after them the nodes of `draft`, in slots of the numbers that follow.

    chooses: the committed tokens end in this span, so the target chooses after the root and after
    every draft. Otherwise it is a part of a prompt.
    pages: the request's, from number `first_page` on; those before are as they were in its last span. They
    cover everything that this step may write, next drafts included.
    scores: which of the tokens, of a prompt whose log-probabilities are wanted: of the token after each.
    extend: the drafter takes in the span's true positions now; else see `Plan.keep`.
    ahead: planned before the result of the request's last span was read. The executor goes on from where that
    span leaves the request: `start` is its root's position, `draft` what that span proposed, cut to
    `most_drafts` nodes and to the room that is left. If it ended there, this span has no rows. The scheduler
    fills both in once it knows them, for itself alone.
    """

    rid: str
    start: int
    known: int
    draft: Draft
    chooses: bool
    first_page: int
    pages: Sequence[int]
    num_steps: int  # depth of the draft wanted for the next step
    scores: range = range(0)
    extend: bool = True
    draft_from: int = 0  # first position that the drafter sees, at the beginning of a page
    cut: bool = False  # the plan's cutoff may make the next draft shorter
    ahead: bool = False
    most_drafts: int = 0

    @property
    def end(self) -> int:
        """No position before it is left to compute, if all drafts hold."""
        return self.start + self.known + self.draft.depth

    @property
    def drafts(self) -> int:
        """Nodes of the draft, at most."""
        return self.most_drafts or len(self.draft.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """cutoff: None where it cuts no span's draft. keep: of spans that do not extend, the drafter keeps what
    it needs to take them in later; without it, it never sees their positions, nor those it kept so far."""

    spans: Sequence[SpanPlan]
    cutoff: Cutoff | None = None
    keep: bool = False


@dataclass(slots=True)
class SpanResult:
    """tokens: what the step commits, [accepted drafts ..., bonus]; empty for a part of a prompt.
    draft: the proposal for the next step. logprobs: of `tokens`, None if not wanted. prompt_logprobs: one
    for each of the span's `scores`. ended: the span's grammar is complete. error: why the request ends after
    `tokens`, of which there may be none then."""

    tokens: list[int]
    draft: Draft
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    ended: bool = False
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """spans: one for each of the plan's, in its order. work: what ran; None: the executor does not tell."""

    spans: Sequence[SpanResult]
    work: StepWork | None = None

    @property
    def ran(self) -> bool:
        """Had it rows? Not where all of its requests had ended in the step before."""
        return bool(self.spans) and (self.work is None or self.work.rows > 0)
