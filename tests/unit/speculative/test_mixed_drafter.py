"""Which source drafts, and what the NextN layer's drafter is told meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.draft import NO_DRAFT, Draft
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted
from nextn.speculative.mixed_drafter import MixedDrafter

LAYERS = Draft([90, 91])


class Layer:
    """Drafts what it is given to draft, and keeps what it was told."""

    def __init__(self) -> None:
        self.draft = LAYERS
        self.work: list[Committed] = []
        self.gone: list[str] = []

    def forget(self, rids: Sequence[str]) -> None:
        self.gone += rids

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        self.work += work
        return Drafted([self.draft if w.want else NO_DRAFT for w in work], extended=len(work))


def no_choice(*_: object) -> list[list[tuple[int, float]]]:
    raise AssertionError("nothing is chosen here")


def step(drafter: MixedDrafter, text: list[int], chosen: list[int], want: int = 2, rid: str = "a") -> Draft:
    work = Committed(rid, len(text) - 1, [0], chosen, [1], want, list(text), chosen)
    made = drafter.propose(torch.zeros(1, 1), [work], no_choice)
    text += chosen
    return made.drafts[0]


def test_whichever_held_drafts() -> None:
    layer = Layer()
    drafter = MixedDrafter(layer)
    text = [1, 2, 3, 4, 5, 6]
    assert step(drafter, text, [7]) == LAYERS  # nothing has come twice
    drafts = [step(drafter, text, [t]) for t in [1, 2, 3, 4, 5, 6, 7] * 6]
    assert drafts[-1].tokens == [1, 2]
    assert drafts[-20:].count(LAYERS) == 0
    came = random.Random(0).choices([1, 2, 3], k=100)
    drafted_by_layer = 0
    for token, following in itertools.pairwise(came):
        layer.draft = Draft([following, 0])  # it knows, and what came before does not tell
        drafted_by_layer += step(drafter, text, [token]) is layer.draft
    assert drafted_by_layer > 60


def test_the_layer_takes_in_what_it_does_not_draft() -> None:
    layer = Layer()
    drafter = MixedDrafter(layer)
    text = [1, 2, 3, 4, 1, 2, 3]
    chosen = [[4], [1, 2, 3], [4, 1], [2], [3, 4, 1]]
    drafted = [step(drafter, text, c) for c in chosen]
    assert any(d is not LAYERS for d in drafted)
    assert [w.following for w in layer.work] == chosen
    assert all(w.extend for w in layer.work)
    assert [w.want for w in layer.work] == [2 * (d is LAYERS) for d in drafted]
    assert step(drafter, text, [2], want=0) == NO_DRAFT
    assert layer.work[-1].want == 0


def test_forgotten_requests_leave_nothing() -> None:
    layer = Layer()
    drafter = MixedDrafter(layer)
    for rid in ("a", "b"):
        for _ in range(9):
            step(drafter, [1, 2, 3, 1, 2], [3], rid=rid)
    drafter.forget(["a", "b"])
    assert layer.gone == ["a", "b"]
    assert not drafter.guesses
    assert not drafter.ngrams._indexes
    assert not drafter.trust._own
