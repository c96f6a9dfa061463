"""Draft spans as a step produces them, without a scheduler and a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nextn.constraint import GrammarCursor
from nextn.draft import Draft
from nextn.request import SamplingParams
from nextn.speculative.base import Drafted, Drafter, DraftRequest, DraftSpan
from nextn.speculative.draft_state import DraftState

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Sampled:
    """A request with the fields that the choice of its tokens needs."""

    history: Sequence[int] = ()
    params: SamplingParams = GREEDY
    num_prompt: int = 0
    end_ids: frozenset[int] = frozenset()
    grammar: GrammarCursor | None = None


def draft_span(
    start: int = 0,
    rows: Sequence[int] = (0,),
    following: Sequence[int] = (0,),
    pages: Sequence[int] = (1,),
    num_steps: int = 0,
    history: Sequence[int] = (),
    chosen: Sequence[int] = (),
    state: DraftState | None = None,
    params: SamplingParams = GREEDY,
    **rest: Any,
) -> DraftSpan:
    """A span with default values. state: a new one if None."""
    return DraftSpan(
        Sampled(history, params),
        state or DraftState(),
        start,
        rows,
        following,
        pages,
        num_steps,
        chosen,
        **rest,
    )


def next_draft(drafter: Drafter, span: DraftSpan, hidden: Tensor | None = None) -> Draft:
    """The draft after a step with only this span."""
    return all_drafts(drafter, [span], hidden).drafts[0]


def all_drafts(drafter: Drafter, spans: Sequence[DraftSpan], hidden: Tensor | None = None) -> Drafted:
    return drafter.draft(DraftRequest(torch.zeros(1, 1) if hidden is None else hidden, spans))


class Beside:
    """Another drafter for the same steps, with its own states."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._states: dict[int, tuple[DraftState, DraftState]] = {}  # by id: the engine's state and our own

    def draft(self, request: DraftRequest, **changes: Any) -> Drafted:
        """changes: applied to every span."""
        own = [self._states.setdefault(id(s.state), (s.state, DraftState()))[1] for s in request.spans]
        spans = [replace(s, state=o, **changes) for s, o in zip(request.spans, own, strict=True)]
        return self.drafter.draft(request._replace(spans=spans))

    def drop(self, state: DraftState) -> None:
        if id(state) in self._states:
            self.drafter.drop(self._states.pop(id(state))[1])
