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


def test_parts_of_steps_come_to_the_steps():
    rows, one = {1: 1.0, 4: 3.0, 64: 20.0}, {1: 0.5, 16: 2.0}
    costs = StepCosts(rows, {2: 0.7, 32: 3.0}, one, 0.25, {1: 0.1, 64: 4.0})
    works = [
        StepWork(rows=4, requests=4),
        StepWork(rows=9, extended=6, passes=[3, 1], requests=4, drafts=5),
        StepWork(rows=70, extended=66, requests=4, drafts=6),  # 60 rows of prompts
        StepWork(rows=200),
    ]
    parts = costs.parts(works)
    assert parts.sum(axis=1) == pytest.approx([costs.step(work) for work in works])
    assert (parts >= 0.0).all()
    assert parts[0, 1:] == pytest.approx(0.0)
    assert parts[1, 1] == pytest.approx(costs.target(9) - costs.target(4))
    assert parts[1, 4:].tolist() == pytest.approx([1.0, costs.draft(3) - 0.5])
    assert parts[2, 2] == pytest.approx(costs.target(70) - costs.target(10))


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_points_that_are_none_are_refused(points):
    with pytest.raises(ValueError, match="cost needs points"):
        CostCurve(points)
    with pytest.raises(ValueError, match="fixed cost"):
        StepCosts({1: 1.0}, {1: 1.0}, {1: 1.0}, fixed=-1.0)
