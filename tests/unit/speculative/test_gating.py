"""What is learnt of how sure a drafter is, and the thresholds that come of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import MOST_DEPTH
from nextn.gate import EDGES
from nextn.speculative.allocate import Base, Group, Planner
from nextn.speculative.costs import StepCosts
from nextn.speculative.gating import Gating
from nextn.speculative.leads import Leads

EVEN = [1.0] * (MOST_DEPTH + 1)
chains = st.lists(st.integers(0, len(EDGES)), min_size=1, max_size=MOST_DEPTH)


def planner(n, target, draft, group=True):
    costs = StepCosts(target, draft, draft, 0.0)
    return Planner([Group(n, [0.7, 0.5, 0.35, 0.2])] if group else [], Base(n, float(n)), costs, EVEN)


@given(st.lists(st.tuples(chains, st.data())))
def test_rates_are_rates_whatever_is_seen(notes):
    leads = Leads()
    for bins, data in notes:
        verified = data.draw(st.integers(0, len(bins)))
        leads.note(bins, verified, data.draw(st.integers(0, verified)))
    assert all(0.0 < r < 1.0 for r in leads.rates())
    assert 0.0 < leads.usual() < 1.0


def test_rates_come_to_what_happens_and_follow_it():
    leads, luck = Leads(), random.Random(0)
    for truth in ({0: 0.2, 4: 0.9}, {0: 0.7, 4: 0.5}):
        for _ in range(20000):
            bins = [luck.choice((0, 4)) for _ in range(3)]
            held = next((j for j, b in enumerate(bins) if luck.random() > truth[b]), 3)
            leads.note(bins, 3, held)
            leads.forget()
        for b, p in truth.items():
            assert leads.rates()[b] == pytest.approx(p, abs=0.05)
    assert leads.usual() == pytest.approx(0.6, abs=0.05)  # as many of one bin as of the other


def test_what_was_not_verified_counts_as_its_like():
    """Of 100 guesses that nobody verified, as many held as the rate of their bin says."""
    gating = Gating()
    rate = gating.gate.rates[1]
    outcomes = [gating.note([8, 1], 1, 1) for _ in range(100)]
    assert {v for v, _ in outcomes} == {2}
    assert sum(a - 1 for _, a in outcomes) == pytest.approx(100 * rate, abs=1)
    assert gating.note([8, 1], 1, 0) == (1, 0)  # it was not reached
    assert gating.note([8, 1], 2, 2) == (2, 2)
    assert gating.used


def test_a_stretch_says_how_many_were_verified():
    gating = Gating()
    for _ in range(12):
        gating.note([3, 3], 2, 1)
    assert gating.stretch(8) == 3.0
    assert gating.stretch(8) is None


def test_thresholds_are_what_time_is_worth():
    """One request, two tokens a step; a row takes a tenth of a step's time and a guess another."""
    gating = Gating()
    rows = {1: 1.0, 11: 2.0}
    gating.plan(planner(1, rows, {1: 0.1}), MOST_DEPTH, committed=2.0)
    step = 1.0 + 1.5 * 0.2  # with the drafts that are taken to be usual
    assert gating.gate.keep == pytest.approx(0.1 * 2.0 / step, rel=0.15)
    assert gating.gate.each + gating.gate.passing == pytest.approx(0.2 * 2.0 / step, rel=0.15)


def test_what_costs_nothing_is_let_through_and_what_costs_much_is_not():
    free, dear = Gating(), Gating()
    free.plan(planner(4, {1: 1.0}, {1: 1e-9}), MOST_DEPTH, committed=3.0)
    dear.plan(planner(4, {1: 1.0, 64: 64.0}, {1: 0.1, 4: 0.2}), MOST_DEPTH, committed=2.0)
    assert free.gate.keep < 1e-3 > free.gate.each + free.gate.passing
    assert dear.gate.keep > 0.5
    assert dear.gate.each > dear.gate.keep


def test_now_and_then_everything_is_verified():
    gating = Gating()
    dear = planner(4, {1: 1.0, 64: 64.0}, {1: 0.1, 4: 0.2})
    kept = []
    for _ in range(32):
        gating.plan(dear, MOST_DEPTH, committed=2.0)
        kept.append(gating.gate.keep == 0.0)
    assert sum(kept) == 2


def test_nobody_to_gate_for():
    gating = Gating()
    before = gating.gate
    gating.plan(planner(2, {1: 1.0}, {1: 0.1}, group=False), MOST_DEPTH, committed=2.0)
    assert gating.gate is before
