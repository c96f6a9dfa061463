"""The state of one request that an executor keeps from step to step, from `add` to `drop`.

It is made from plain data. A request that lost its pages is added again with its committed tokens.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nextn.constraint import CompiledGrammar, GrammarCursor
from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT, Draft
from nextn.request import Failure, SamplingParams, first_end
from nextn.speculative.draft_state import DraftState


class Outcome(Protocol):
    """The result of a step for one request: see `nextn.scheduler.plan.SpanResult`."""

    tokens: list[int]
    draft: Draft
    ended: bool
    error: Failure | None


@dataclass(slots=True, eq=False)
class RequestState:
    """history: all committed tokens; each step appends those that it commits. limit: their maximum number.
    constraint: the compiled grammar from which `grammar` is made."""

    rid: str
    params: SamplingParams
    history: list[int]
    num_prompt: int
    limit: int
    end_ids: frozenset[int]
    constraint: CompiledGrammar | None = None

    # Set by the executor.
    grammar: GrammarCursor | None = None  # advanced to the end of `history`
    pages: array[int] = field(default_factory=lambda: array("i"))
    drafting: DraftState = field(default_factory=DraftState)
    last: Outcome | None = None  # of the last step

    # Set by `nextn.engine.plain_step`: the number of tokens from which the request is plain, and model data.
    plain_from: int = sys.maxsize
    asked: bytes = b""
    ends: array[int] = field(default_factory=lambda: array("i"))

    # About the current step, unless it is one native call: see `nextn.scheduler.plan.SpanPlan`.
    start: int = 0
    known: int = 0
    draft: Draft = NO_DRAFT
    tokens: Sequence[int] = ()  # the known ones and the draft's
    chooses: bool = False
    num_steps: int = 0
    scores: range = range(0)
    extend: bool = True
    draft_from: int = 0
    cutoff: Cutoff | None = None

    def begin(self) -> None:
        """To be called by the executor when the request is added."""
        if self.constraint is not None:
            self.grammar = GrammarCursor(self.constraint.begin(), self.end_ids)
            self.grammar.replay(self.history[self.num_prompt :])

    def commit(self, result: Outcome) -> None:
        """Applies the result of a step."""
        self.history += result.tokens
        self.last = result

    @property
    def proposed(self) -> Draft:
        """The draft that the last step proposed."""
        return NO_DRAFT if self.last is None else self.last.draft

    @property
    def ended(self) -> bool:
        """Whether the last step ended the request. A token must have been chosen in that step."""
        last = self.last
        if last is None or last.ended or last.error is not None or len(self.history) >= self.limit:
            return last is not None
        before = len(self.history) - len(last.tokens) - self.num_prompt
        least = 0 if self.constraint is not None else self.params.min_tokens - before
        return first_end(last.tokens, self.end_ids, least) is not None

    def go_on(self, most_drafts: int) -> None:
        """Begins a span that was planned ahead: see `nextn.scheduler.plan.SpanPlan`."""
        self.start, self.known = len(self.history) - 1, 1
        self.draft = self.proposed.cut(most_drafts, self.room - 1)

    @property
    def room(self) -> int:
        """Number of tokens that the request may still get, including this step's."""
        return self.limit - len(self.history)

    @property
    def following(self) -> int:
        """For a prompt chunk: the token after it."""
        return self.history[self.start + self.known]
