"""Rates move from the prior to what held, of each request by itself, and forget."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.acceptance import PRIORS, Acceptance, Counts

tokens = st.lists(st.integers(0, 1), max_size=5)


@pytest.mark.parametrize("source", PRIORS)
def test_it_begins_with_the_prior_and_goes_to_what_held(source: int) -> None:
    acceptance, rng = Acceptance(), random.Random(0)
    a: dict[int, Counts] = {}
    new: dict[int, Counts] = {}
    assert acceptance.rate(a, source) == pytest.approx(PRIORS[source])
    for _ in range(2000):
        acceptance.learn(a, source, [7, 7, 7], [7 if rng.random() < 0.9 else 8 for _ in range(4)])
    assert acceptance.rate(a, source) == pytest.approx(0.9, abs=0.1)
    assert acceptance.rate(new, source) == pytest.approx(0.9, abs=0.05)  # others begin with what was learnt
    for _ in range(60):
        acceptance.learn(new, source, [7], [8])
    assert acceptance.rate(new, source) < 0.25 < 0.7 < acceptance.rate(a, source)


@given(st.lists(st.tuples(tokens, tokens), max_size=30))
def test_a_rate_is_between_nothing_and_all(news: list[tuple[list[int], list[int]]]) -> None:
    acceptance = Acceptance()
    own: dict[int, Counts] = {}
    for guess, came in news:
        acceptance.learn(own, 2, guess, came)
        assert 0.0 < acceptance.rate(own, 2) < 1.0


def test_what_follows_a_miss_says_nothing() -> None:
    first, second = Acceptance(), Acceptance()
    one: dict[int, Counts] = {}
    two: dict[int, Counts] = {}
    first.learn(one, 2, [1, 2, 3, 4], [1, 9])
    second.learn(two, 2, [1, 2, 7], [1, 9, 7])
    assert first.rate(one, 2) == second.rate(two, 2)
    first.learn(one, 2, [], [1])
    first.learn(one, 2, [1], [])
    assert first.rate(one, 2) == second.rate(two, 2)
