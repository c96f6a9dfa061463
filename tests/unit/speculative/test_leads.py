"""How often guesses hold by their lead: what is counted, what is assumed, what is forgotten."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import MOST_DEPTH
from nextn.gate import EDGES
from nextn.speculative.leads import Leads

chains = st.binary(min_size=1, max_size=MOST_DEPTH).map(lambda b: bytes(x % (len(EDGES) + 1) for x in b))


@given(st.lists(st.tuples(chains, st.data())), st.integers(1, 5))
def test_rates_are_rates_whatever_is_seen(notes, at_once):
    leads = Leads()
    for i, (bins, data) in enumerate(notes):
        verified = data.draw(st.integers(0, len(bins)))
        leads.note(bins, verified, data.draw(st.integers(0, verified)))
        if i % at_once == 0:
            leads.learn()
    leads.learn()
    assert all(0.0 < r < 1.0 for r in leads.rates())
    assert 0.0 < leads.usual() < 1.0


@given(st.lists(st.tuples(chains, st.data()), max_size=20))
def test_counts_are_those_of_a_loop(notes):
    """Of a chain those guesses were judged that held, and the first that did not if it was verified."""
    leads, held, seen, made = Leads(), [0] * 9, [0] * 9, [0] * 9
    before = [x.copy() for x in (leads._held, leads._seen, leads._made)]
    for bins, data in notes:
        verified = data.draw(st.integers(0, len(bins)))
        accepted = data.draw(st.integers(0, verified))
        leads.note(bins, verified, accepted)
        for j, b in enumerate(bins):
            made[b] += 1
            held[b] += j < accepted
            seen[b] += j < accepted or j == accepted < verified
    leads.learn()
    found = [x - y for x, y in zip((leads._held, leads._seen, leads._made), before, strict=True)]
    assert [x.round(9).tolist() for x in found] == [held, seen, made]


def test_rates_come_to_what_happens_and_follow_it():
    leads, luck = Leads(), random.Random(0)
    for truth in ({0: 0.2, 4: 0.9}, {0: 0.7, 4: 0.5}):
        for i in range(20000):
            bins = bytes(luck.choice((0, 4)) for _ in range(3))
            held = next((j for j, b in enumerate(bins) if luck.random() > truth[b]), 3)
            leads.note(bins, 3, held)
            if i % 100 == 0:
                leads.learn()
        for b, p in truth.items():
            assert leads.rates()[b] == pytest.approx(p, abs=0.05)
    assert leads.usual() == pytest.approx(0.6, abs=0.05)  # as many of one bin as of the other


def test_what_was_not_verified_says_nothing_of_its_rate():
    leads = Leads()
    before = leads.rates()
    for _ in range(1000):
        leads.note(b"\x03\x05", 0, 0)
    leads.learn()
    assert leads.rates() == before
    # But it says what guesses there are.
    assert leads.usual() == pytest.approx((before[3] + before[5]) / 2, abs=0.01)
