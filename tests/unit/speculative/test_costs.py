"""Cost curves: what they make of a few measurements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.costs import CostCurve, StepCosts, StepWork

points = st.dictionaries(st.integers(1, 300), st.floats(1e-5, 10.0), min_size=1, max_size=8)


@given(points)
def test_more_rows_never_cost_less(points):
    curve = CostCurve(points)
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


def test_a_step_is_the_sum_of_its_parts():
    costs = StepCosts({1: 10.0}, {1: 2.0}, {1: 1.0}, fixed=0.5)
    assert costs.step(StepWork(rows=3, extended=2, passes=[1, 1])) == pytest.approx(
        0.5 + 10.0 + 2.0 + 2 * 1.0
    )
    assert costs.step(StepWork(rows=3)) == pytest.approx(10.5)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_points_that_are_none_are_refused(points):
    with pytest.raises(ValueError, match="cost needs points"):
        CostCurve(points)
    with pytest.raises(ValueError, match="fixed cost"):
        StepCosts({1: 1.0}, {1: 1.0}, {1: 1.0}, fixed=-1.0)
