"""What steps take against what was said of them: what is learnt, what noise may not do to it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import MOST_DEPTH
from nextn.speculative.measured import Measured, batch_class, between

ratios = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(st.integers(1, 7), st.floats(0.0, 20.0), ratios), max_size=60))
def test_whatever_is_seen_factors_are_factors(notes):
    measured = Measured()
    for batch, drafts, ratio in notes:
        measured.note(batch, drafts, ratio)
    for batch in range(1, 8):
        assert all(0.0 < f < 1e4 for f in measured.factors(batch))
        assert 0.0 <= measured.spread(batch, 0.0, 3.0) < 1.0
        assert measured.spread(batch, 2.0, 2.0) == 0.0


def alternate(measured, truth, rounds, rng, batch=5, noise=0.01):
    """Two settings in turn on a machine whose speed wanders."""
    slow = 1.0
    for i in range(rounds):
        for drafts in (0.0, 2.0) if i % 2 else (2.0, 0.0):
            slow *= rng.lognormvariate(0, 0.03)
            measured.note(batch, drafts, slow * truth[drafts] * rng.lognormvariate(0, noise))


def test_settings_are_compared_whatever_the_machine_does():
    measured = Measured()
    alternate(measured, {0.0: 1.0, 2.0: 1.2}, 60, random.Random(0))
    factors = measured.factors(5)
    assert factors[2] / factors[0] == pytest.approx(1.2, rel=0.03)
    assert measured.spread(5, 0.0, 2.0) < 0.03
    assert measured.spread(5, 0.0, 4.0) > 0.1


def test_what_is_learnt_is_news_of_the_neighbours():
    measured = Measured()
    alternate(measured, {0.0: 1.0, 2.0: 1.3}, 60, random.Random(0))
    factors = measured.factors(5)
    assert factors[8] / factors[0] == pytest.approx(1.3, rel=0.05)
    assert 1.0 < factors[1] / factors[0] < 1.32


def test_an_outlier_says_little():
    measured = Measured()
    alternate(measured, {0.0: 1.0, 2.0: 1.2}, 60, random.Random(0))
    before = measured.factors(5)
    measured.note(5, 0.0, 50.0)
    after = measured.factors(5)
    assert after[2] / after[0] == pytest.approx(before[2] / before[0], rel=0.12)


def test_what_was_interrupted_is_not_compared():
    measured = Measured()
    measured.note(5, 0.0, 1.0)
    measured.interrupt()
    measured.note(5, 2.0, 3.0)
    assert measured.factors(5) == [1.0] * (MOST_DEPTH + 1)
    measured.note(4, 0.0, 1.0)  # another batch size came between
    measured.note(5, 0.0, 1.0)
    assert measured.factors(5) == [1.0] * (MOST_DEPTH + 1)


def test_a_new_batch_size_starts_from_the_nearest():
    measured = Measured()
    alternate(measured, {0.0: 1.0, 2.0: 1.2}, 30, random.Random(1), batch=4)
    alternate(measured, {0.0: 1.0, 2.0: 0.8}, 30, random.Random(1), batch=1)
    assert measured.factors(5)[2] == pytest.approx(measured.factors(4)[2])
    assert measured.factors(2)[2] == pytest.approx(measured.factors(1)[2])
    assert measured.spread(5, 0.0, 2.0) > measured.spread(4, 0.0, 2.0)


def test_uncertainty_comes_back():
    measured = Measured()
    alternate(measured, {0.0: 1.0, 2.0: 1.0}, 40, random.Random(2))
    sure = measured.spread(5, 0.0, 2.0)
    for _ in range(400):
        measured.note(5, 0.0, 1.0)
    assert measured.spread(5, 0.0, 2.0) > 3 * sure


def test_between_settings_is_a_straight_line():
    factors = [1.0, 2.0, *[4.0] * (MOST_DEPTH - 1)]
    assert [between(factors, d) for d in (0.0, 0.5, 1.25, 2.0, 99.0)] == [1.0, 1.5, 2.5, 4.0, 4.0]


def test_batch_classes_double():
    assert [batch_class(n) for n in (0, 1, 2, 3, 5, 6, 11, 12, 22, 23, 60, 64)] == [
        0,
        0,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        6,
        6,
    ]
