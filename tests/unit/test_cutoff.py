"""The cutoff's rule over chains of guesses, by hand."""

from __future__ import annotations

import math

import pytest

from nextn.cutoff import EDGES, NO_GUESS, CutChains, Cutoff, bins

RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
ALL = Cutoff(RATES, row_cost=0.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0)
SURE, UNSURE = 8, 0


def guess(rule: CutChains, *guess_bins: int, others: bool = False) -> tuple[list[int], list[int]]:
    rule.guessed(bytes(guess_bins), others)
    return rule.going, rule.kept


def test_a_confidence_at_an_edge_is_in_the_bin_above() -> None:
    just_below = [math.nextafter(e, 0) - 1e-6 for e in EDGES]
    assert list(bins(just_below)) == list(range(8))
    assert list(bins(EDGES)) == list(range(1, 9))


def test_confidences_that_are_no_lengths() -> None:
    assert list(bins([0.0, -1.0, math.nan, -math.inf, math.inf])) == [0, 0, 0, 0, 8]
    assert bins([]) == b""


def test_chains_get_what_they_want_where_nothing_costs() -> None:
    rule = CutChains(ALL, [1, 3])
    assert guess(rule, UNSURE, UNSURE) == ([1], [1, 1])
    assert guess(rule, UNSURE) == ([1], [1, 2])
    assert guess(rule, UNSURE) == ([], [1, 3])
    assert rule.made == 3


def test_a_guess_that_is_unlikely_to_hold_is_not_kept_and_ends_its_chain() -> None:
    rule = CutChains(ALL._replace(row_cost=0.5), [4, 4, 4])
    assert guess(rule, SURE, UNSURE, 2) == ([0, 2], [1, 0, 1])  # 1, 0.4, 0.6
    assert guess(rule, 1, 4) == ([0], [2, 0, 1])  # 0.5, 0.48
    assert guess(rule, 7) == ([], [2, 0, 1])  # 0.475


def test_a_chain_ends_where_a_further_guess_gains_nothing() -> None:
    cutoff = ALL._replace(mean_rate=0.8, guess_cost=0.35)
    rule = CutChains(cutoff, [4, 4])
    assert guess(rule, 0, 1) == ([1], [1, 1])  # 0.4 and 0.5 of 0.8
    even = Cutoff((0.5,) * 9, row_cost=0.0, mean_rate=0.5, guess_cost=0.25, pass_cost=0.0)
    assert guess(CutChains(even, [2]), 0) == ([], [1])


@pytest.mark.parametrize("others", [False, True])
def test_all_end_where_a_pass_costs_what_they_gain(others: bool) -> None:
    """Unless it is run for others in any case."""
    cutoff = Cutoff((0.5,) * 9, row_cost=0.0, mean_rate=0.5, guess_cost=0.0, pass_cost=0.5)
    two, three = CutChains(cutoff, [2, 2]), CutChains(cutoff, [2, 2, 2])
    assert guess(two, 0, 0, others=others) == ([0, 1] if others else [], [1, 1])
    assert guess(three, 0, 0, 0, others=others) == ([0, 1, 2], [1, 1, 1])


def test_a_chain_ends_where_there_is_nothing_to_guess() -> None:
    rule = CutChains(ALL, [4, 4])
    assert guess(rule, UNSURE, UNSURE) == ([0, 1], [1, 1])
    assert guess(rule, NO_GUESS, SURE) == ([1], [1, 2])


def test_no_chains() -> None:
    rule = CutChains(ALL, [])
    assert (rule.going, rule.kept) == ([], [])
