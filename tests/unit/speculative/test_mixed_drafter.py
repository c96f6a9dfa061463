"""Which source drafts, and what the NextN layer's drafter is told meanwhile."""

from __future__ import annotations

import itertools
import random

from support.draft_spans import draft_span, next_draft

from nextn.draft import NO_DRAFT, Draft
from nextn.speculative.base import Drafted, DraftRequest, DraftSpan
from nextn.speculative.draft_state import DraftState
from nextn.speculative.mixed_drafter import MixedDrafter

LAYERS = Draft([90, 91])


class Layer:
    """Drafts what it is given to draft, and keeps what it was told."""

    def __init__(self) -> None:
        self.next = LAYERS
        self.spans: list[DraftSpan] = []
        self.gone: list[DraftState] = []

    def drop(self, state: DraftState) -> None:
        self.gone.append(state)

    def draft(self, request: DraftRequest) -> Drafted:
        self.spans += request.spans
        drafts = [self.next if s.num_steps else NO_DRAFT for s in request.spans]
        return Drafted(drafts, extended=len(drafts))


def step(
    drafter: MixedDrafter, state: DraftState, text: list[int], chosen: list[int], num_steps: int = 2
) -> Draft:
    span = draft_span(len(text) - 1, [0], chosen, [1], num_steps, list(text), chosen, state)
    draft = next_draft(drafter, span)
    text += chosen
    return draft


def test_whichever_held_drafts() -> None:
    layer, state = Layer(), DraftState()
    drafter = MixedDrafter(layer)
    text = [1, 2, 3, 4, 5, 6]
    assert step(drafter, state, text, [7]) == LAYERS  # nothing has come twice
    drafts = [step(drafter, state, text, [t]) for t in [1, 2, 3, 4, 5, 6, 7] * 6]
    assert drafts[-1].tokens == [1, 2]
    assert drafts[-20:].count(LAYERS) == 0
    came = random.Random(0).choices([1, 2, 3], k=100)
    drafted_by_layer = 0
    for token, following in itertools.pairwise(came):
        layer.next = Draft([following, 0])  # it knows, and what came before does not tell
        drafted_by_layer += step(drafter, state, text, [token]) is layer.next
    assert drafted_by_layer > 60


def test_the_layer_takes_in_what_it_does_not_draft() -> None:
    layer, state = Layer(), DraftState()
    drafter = MixedDrafter(layer)
    text = [1, 2, 3, 4, 1, 2, 3]
    chosen = [[4], [1, 2, 3], [4, 1], [2], [3, 4, 1]]
    drafted = [step(drafter, state, text, c) for c in chosen]
    assert any(d is not LAYERS for d in drafted)
    assert [w.following for w in layer.spans] == chosen
    assert all(w.extend for w in layer.spans)
    assert [w.num_steps for w in layer.spans] == [2 * (d is LAYERS) for d in drafted]
    assert step(drafter, state, text, [2], num_steps=0) == NO_DRAFT
    assert layer.spans[-1].num_steps == 0


def test_the_layer_hears_of_requests_that_are_gone() -> None:
    layer, state = Layer(), DraftState()
    MixedDrafter(layer).drop(state)
    assert layer.gone == [state]
