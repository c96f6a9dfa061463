"""Which requests need nothing of the target's logits but draws, and which draws these are."""

from __future__ import annotations

from typing import Any

import pytest

from nextn.constraint import Constraint
from nextn.draft import NO_DRAFT, Draft
from nextn.request import SamplingParams, SpeculativeParams
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import VerifySpan

CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"temperature": 0.0}, True),
    ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, True),
    ({"min_tokens": 2}, True),
    ({"min_tokens": 3}, False),
    ({"logprobs": 0}, False),
    ({"prompt_logprobs": 1}, True),
    ({"repetition_penalty": 1.1}, False),
    ({"frequency_penalty": 0.1}, False),
    ({"presence_penalty": 0.1}, False),
    ({"logit_bias": {1: 2.0}}, False),
    ({"constraint": Constraint("regex", "a")}, False),
    ({"speculative": SpeculativeParams(verify="rejection")}, False),
    ({"speculative": SpeculativeParams(verify="rejection"), "temperature": 0.0}, True),
]


def span(draft: Draft = NO_DRAFT, **changes: Any) -> VerifySpan:
    params = SamplingParams(**{"seed": 9, "stream": 4, **changes})
    return VerifySpan(RequestState("a", params, [1, 2, 3, 4, 5], 3, 99, frozenset()), draft)


@pytest.mark.parametrize(("changes", "alone"), CHANGES, ids=str)
def test_what_takes_no_more_than_draws(changes: dict[str, Any], alone: bool) -> None:
    assert span(**changes).takes_draws == alone


def test_the_draws_of_chains_and_trees() -> None:
    """Positions count up along a chain; in a tree they are those of the nodes' depths."""
    (draw,) = span(Draft([7, 8])).draws()
    assert (draw.seed, draw.stream, draw.position, draw.rows) == (9, 4, 5, 3)
    found = span(Draft([7, 8, 9], [-1, -1, 0])).draws()
    assert [(d.position, d.rows) for d in found] == [(5, 1), (6, 1), (6, 1), (7, 1)]
