"""A step's plan and its result: what the scheduler asks for and what the executor answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nextn.constraint import GrammarCursor
from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.request import Failure, SamplingParams, TokenLogprob
from nextn.speculative.work import StepWork


@dataclass(slots=True)
class Row:
    """One request's part of a step: `tokens` in slots start, start + 1, ...; the last of them are the nodes
    of `draft`, the others stand at positions of the same numbers.

    chooses: the committed tokens end in this row, so the target chooses after the root and after
    every draft. Otherwise it is a part of a prompt and `following` is the token after it.
    scores: indices into `tokens`, of a prompt whose log-probabilities are wanted: the token after each.
    extend: the drafter takes in the row's true positions now; else it keeps what it needs to do it later.
    """

    rid: str
    tokens: Sequence[int]
    start: int
    draft: Draft
    chooses: bool
    following: int
    pages: Sequence[int]  # covers everything this step may write, next drafts included
    draft_next: int  # depth of the draft wanted for the next step
    room: int  # tokens the request may still get, this step's included
    params: SamplingParams
    history: Sequence[int]  # all committed tokens of the request
    num_prompt: int
    end_ids: frozenset[int]
    grammar: GrammarCursor | None = None  # at the last of `history`
    scores: range = range(0)
    extend: bool = True
    draft_from: int = 0  # first position that the drafter sees, at the beginning of a page
    cutoff: Cutoff | None = None  # for the next draft, which may then be shorter

    @property
    def known(self) -> int:
        """How many of `tokens` are no guesses."""
        return len(self.tokens) - len(self.draft)


@dataclass(frozen=True, slots=True)
class Plan:
    """gone: requests that ended, or lost their pages, since the plan before: what is kept of them is dropped
    before the step runs."""

    rows: Sequence[Row]
    gone: Sequence[str] = ()


@dataclass(slots=True)
class RowResult:
    """tokens: what the step commits, [accepted drafts ..., bonus]; empty for a part of a prompt.
    draft: the proposal for the next step. logprobs: of `tokens`, None if not wanted. prompt_logprobs: one
    for each of the row's `scores`. ended: the row's grammar is complete. error: why the request ends after
    `tokens`, of which there may be none then."""

    tokens: list[int]
    draft: Draft
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    ended: bool = False
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """rows: one per row, in the plan's order. work: what ran; None: the executor does not tell."""

    rows: Sequence[RowResult]
    work: StepWork | None = None
