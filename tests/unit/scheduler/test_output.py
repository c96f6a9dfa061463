"""What an output tells of its step's draft."""

from __future__ import annotations

import pytest

from nextn.draft import NO_DRAFT, Draft
from nextn.request import Request, SamplingParams
from nextn.scheduler.output import output, take
from nextn.scheduler.plan import SpanResult


def taken(draft: Draft, tokens: list[int], asked: bool = True):
    request = Request("a", [1, 2], SamplingParams(draft_steps=asked), num_prompt=2, limit=9)
    result = SpanResult(tokens, NO_DRAFT)
    return output(request, result, take(request, result), False, draft)


@pytest.mark.parametrize(
    ("draft", "tokens", "accepted"),
    [
        (NO_DRAFT, [5], []),
        (Draft([5, 6, 7]), [5, 6, 9], [0, 1]),
        (Draft([5, 6, 7]), [8], []),
        (Draft([5, 6]), [5, 6, 7], [0, 1]),
        (Draft([5, 6, 7, 8], [-1, -1, 1, 1]), [6, 8, 9], [1, 3]),  # a tree
        (Draft([5, 6, 6], [-1, -1, 0]), [5, 6, 6], [0, 2]),
        (Draft([5, 6]), [5], []),  # the target chose the first draft's token and no more: it is the bonus
    ],
)
def test_drafts_of_a_step(draft: Draft, tokens: list[int], accepted: list[int]) -> None:
    step = taken(draft, tokens).step
    assert step is not None
    assert (list(step.tokens), step.parents, list(step.accepted)) == (
        list(draft.tokens), draft.parents, accepted,
    )  # fmt: skip
    assert step.seconds > 0


def test_nothing_unless_asked() -> None:
    assert taken(Draft([5, 6]), [5, 7], asked=False).step is None
