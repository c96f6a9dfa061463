"""Allocations against every other one there is."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import MOST_DEPTH
from nextn.speculative.allocate import Base, Group, Planner
from nextn.speculative.costs import StepCosts
from nextn.speculative.measured import between

rates = st.lists(st.floats(0.0, 1.0), max_size=3).map(lambda r: list(accumulate(r, mul)))
EVEN = [1.0] * (MOST_DEPTH + 1)
factors = st.lists(st.floats(0.7, 1.4), min_size=MOST_DEPTH + 1, max_size=MOST_DEPTH + 1)


def seconds_of(depths, base, costs):
    drafting = [n for n in depths if n]
    passes = [sum(n > j for n in depths) for j in range(1, max(depths, default=0))]
    extended = int(base.extended * len(drafting))
    there = costs.fixed + costs.target(base.rows + sum(depths)) + sum(map(costs.draft, passes))
    return there + (costs.extend(extended) + base.owed if drafting else 0.0)


def points(draw):
    first = draw(st.floats(0.5, 5.0))
    rises = draw(st.lists(st.floats(0.0, 2.0), min_size=15, max_size=15))
    return dict(enumerate(accumulate(rises, initial=first), 1))


@given(st.data(), rates, factors)
def test_one_group_gets_the_best_depth(data, survival, factors):
    """Of one request every depth; the cost is measured at every row count, and missed by a factor."""
    costs = StepCosts(points(data.draw), points(data.draw), points(data.draw), 0.1)
    base = Base(1, 1.0, extended=2.0, owed=data.draw(st.floats(0.0, 1.0)))
    found = Planner([Group(1, survival)], base, costs, factors).best()

    def rate(d):
        return (1 + sum(survival[:d])) / (seconds_of([d], base, costs) * factors[d])

    assert found.mean == found.depths[0]
    assert found.rate == pytest.approx(rate(found.depths[0]))
    assert rate(found.depths[0]) >= max(map(rate, range(len(survival) + 1))) / 1.0071


@given(st.data(), st.lists(st.tuples(st.integers(1, 3), rates), min_size=1, max_size=3), factors)
def test_groups_get_nearly_the_best_and_what_is_promised(data, groups, factors):
    """Making drafts is not a matter of likelihood alone, so the order by likelihood may miss a little; it
    must never do worse than no drafts, and for requests that are alike not worse than any depth for all."""
    costs = StepCosts(points(data.draw), points(data.draw), points(data.draw), 0.1)
    n = sum(count for count, _ in groups)
    base = Base(n, float(n), extended=1.5)
    found = Planner([Group(*g) for g in groups], base, costs, factors).best()
    depths, chains = [], []
    for (count, survival), depth in zip(groups, found.depths, strict=True):
        depths += [depth] * count
        chains += [survival] * count

    def rate(depths):
        tokens = n + sum(sum(c[:d]) for c, d in zip(chains, depths, strict=True))
        return tokens / (seconds_of(depths, base, costs) * between(factors, sum(depths) / n))

    assert all(d <= len(c) for d, c in zip(depths, chains, strict=True))
    assert found.mean == pytest.approx(sum(depths) / n)
    assert found.rate == pytest.approx(rate(depths))
    assert rate(depths) >= rate([0] * n) * (1 - 1e-9)
    if len(groups) == 1:
        same = max(rate([d] * n) for d in range(len(groups[0][1]) + 1))
        assert rate(depths) >= same / 1.0071


def test_what_is_measured_overrules_the_table():
    costs = StepCosts({1: 1.0}, {1: 0.01}, {1: 0.01}, 0.0)
    group, base = [Group(2, [0.5, 0.4, 0.3])], Base(2, 2.0)
    assert Planner(group, base, costs, EVEN).best().depths == [3]
    dear = [1.0, 1.0, 1.0, 1.3, *EVEN[4:]]
    assert Planner(group, base, costs, dear).best().depths == [2]


def test_drafts_that_were_asked_for_are_paid_for_already():
    """A pinned request of depth 2 opens both passes; joining them costs the rows alone."""
    costs = StepCosts({1: 1.0}, {1: 5.0}, {1: 5.0}, 0.0)
    alone = Planner([Group(1, [0.5, 0.4])], Base(1, 1.0), costs, EVEN).best()
    joined = Planner([Group(1, [0.5, 0.4])], Base(4, 2.5, drafting=[1, 1]), costs, EVEN).best()
    assert (alone.depths, joined.depths) == ([0], [2])


def test_nobody_to_decide_for():
    costs = StepCosts({1: 1.0}, {1: 5.0}, {1: 5.0}, 0.0)
    assert Planner([], Base(3, 2.0, drafting=[1, 1]), costs, EVEN).best().depths == []
