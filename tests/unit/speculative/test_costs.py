"""Cost curves: what they start from, what they learn, and what noise may not do to them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.costs import KNOTS, CostCurve, StepCosts, StepTimes, StepWork

points = st.dictionaries(st.integers(1, 300), st.floats(1e-5, 10.0), min_size=1, max_size=8)
seen = st.lists(st.tuples(st.integers(1, 400), st.floats(1e-6, 100.0)), max_size=60)


@given(points, seen)
def test_more_rows_never_cost_less(points, seen):
    curve = CostCurve(points)
    for rows, seconds in seen:
        curve.observe(rows, seconds)
    table = curve.upto(500)
    assert table[0] == 0.0
    assert table[1] > 0.0
    assert table == sorted(table)


def test_straight_between_the_points_and_beyond():
    curve = CostCurve({2: 1.0, 4: 2.0, 8: 3.0})
    assert [curve(n) for n in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])


def test_a_measurement_out_of_order_is_averaged_away():
    curve = CostCurve({1: 3.0, 2: 1.0, 4: 4.0})
    assert [curve(n) for n in (1, 2, 4)] == pytest.approx([2.0, 2.0, 4.0])


def test_learns_a_slower_machine_at_rows_it_never_sees():
    curve = CostCurve({n: 1.0 + 0.1 * n for n in KNOTS})
    rng = random.Random(0)
    for _ in range(400):
        n = rng.choice([4, 5, 8])
        curve.observe(n, 1.5 * (1.0 + 0.1 * n) * rng.lognormvariate(0, 0.05))
    assert curve(4) == pytest.approx(1.5 * 1.4, rel=0.03)
    # nobody ran these: most of a change is taken to hold for all
    assert 1.2 < curve(64) / (1.0 + 0.1 * 64) < 1.55


def test_learns_a_stair_between_its_knots():
    curve = CostCurve({n: float(-(-n // 6)) for n in (1, 6, 12, 24)})
    for _ in range(60):
        for n in (16, 18, 19, 24):
            curve.observe(n, float(-(-n // 6)))
    assert curve(18) == pytest.approx(3.0, rel=0.04)
    assert curve(19) == pytest.approx(4.0, rel=0.04)


@pytest.mark.parametrize("factor", [20.0, 1 / 20])
def test_outliers_do_not_move_it(factor):
    curve = CostCurve(dict.fromkeys(KNOTS, 1.0))
    rng = random.Random(1)
    for i in range(1000):
        curve.observe(1 + i % 4, (factor if i % 20 == 0 else 1.0) * rng.lognormvariate(0, 0.03))
    assert curve(2) == pytest.approx(1.0, rel=0.02)


def test_a_step_is_the_sum_of_its_parts_and_each_learns_from_its_own_time():
    costs = StepCosts({1: 10.0}, {1: 2.0}, {1: 1.0}, fixed=0.5)
    work = StepWork(rows=3, extended=2, passes=[1, 1])
    assert costs.step(work) == pytest.approx(0.5 + 10.0 + 2.0 + 2 * 1.0)
    for _ in range(300):
        costs.observe(work, StepTimes(target=12.0, extend=1.0, draft=4.0, whole=17.6))
    assert costs.target(3) == pytest.approx(12.0, rel=0.02)
    assert costs.extend(2) == pytest.approx(1.0, rel=0.02)
    assert costs.draft(1) == pytest.approx(2.0, rel=0.02)
    assert costs.fixed == pytest.approx(0.6, rel=0.02)


def test_a_plain_step_says_nothing_of_drafting():
    costs = StepCosts({1: 10.0}, {1: 2.0}, {1: 1.0}, fixed=0.5)
    costs.observe(StepWork(rows=4), StepTimes(target=20.0, extend=0.0, draft=0.0, whole=20.5))
    assert costs.extend(1) == pytest.approx(2.0)
    assert costs.draft(1) == pytest.approx(1.0)
    assert costs.target(4) > 10.0


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_points_that_are_none_are_refused(points):
    with pytest.raises(ValueError, match="cost needs points"):
        CostCurve(points)
    with pytest.raises(ValueError, match="fixed cost"):
        StepCosts({1: 1.0}, {1: 1.0}, {1: 1.0}, fixed=-1.0)
