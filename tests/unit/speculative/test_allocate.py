"""Allocations against every other one there is."""

from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.allocate import Base, Group, best_depths, likeliest
from nextn.speculative.costs import StepCosts

rates = st.lists(st.floats(0.0, 1.0), max_size=3).map(lambda r: list(accumulate(r, mul)))
rises = st.lists(st.floats(0.0, 3.0), min_size=16, max_size=16)


def stairs(rises, first):
    return list(accumulate(rises, initial=first))


@given(st.lists(rates, max_size=4), rises, st.floats(0.1, 5.0))
def test_the_cut_is_the_best_of_all(chains, rises, first):
    rows, seconds = len(chains), 0.3
    target = stairs(rises, first)

    def rate(kept):
        tokens = rows + sum(sum(c[:n]) for c, n in zip(chains, kept, strict=True))
        return tokens / (seconds + target[rows + sum(kept)])

    kept = likeliest(chains, rows, float(rows), seconds, target)
    assert all(0 <= n <= len(c) for n, c in zip(kept, chains, strict=True))
    best = max(map(rate, product(*[range(len(c) + 1) for c in chains])))
    assert rate(kept) == pytest.approx(best)


def test_equally_likely_drafts_are_not_taken_beyond_the_best_number():
    # three rows are one tile: a fourth would cost a second one
    assert likeliest([[0.5], [0.5], [0.5]], 1, 1.0, 0.0, [0, 1, 1, 1, 9]) == [1, 1, 0]


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


@given(st.data(), rates)
def test_one_group_gets_the_best_depth(data, survival):
    """Of one request every depth; the cost is measured at every row count."""
    costs = StepCosts(points(data.draw), points(data.draw), points(data.draw), 0.1)
    base = Base(1, 1.0, extended=2.0, owed=data.draw(st.floats(0.0, 1.0)))
    found = best_depths([Group(1, survival)], base, costs)

    def rate(d):
        return (1 + sum(survival[:d])) / seconds_of([d], base, costs)

    assert found.tokens / found.seconds == pytest.approx(rate(found.depths[0]))
    assert rate(found.depths[0]) >= max(map(rate, range(len(survival) + 1))) / 1.0051


@given(st.data(), st.lists(st.tuples(st.integers(1, 3), rates), min_size=1, max_size=3))
def test_groups_get_nearly_the_best_and_what_is_promised(data, groups):
    """Against every depth of every request. Making drafts is not a matter of likelihood alone, so the order
    by likelihood may miss a little; it must never do worse than the same depth for all."""
    costs = StepCosts(points(data.draw), points(data.draw), points(data.draw), 0.1)
    n = sum(count for count, _ in groups)
    base = Base(n, float(n), extended=1.5)
    found = best_depths([Group(*g) for g in groups], base, costs)
    depths, chains = [], []
    for g, (count, survival) in enumerate(groups):
        more = found.more if found.of == g else 0
        assert more < count
        depths += [found.depths[g] + (i < more) for i in range(count)]
        chains += [survival] * count

    def rate(depths):
        tokens = n + sum(sum(c[:d]) for c, d in zip(chains, depths, strict=True))
        return tokens / seconds_of(depths, base, costs)

    assert all(d <= len(c) for d, c in zip(depths, chains, strict=True))
    assert found.tokens / found.seconds == pytest.approx(rate(depths))
    assert rate(depths) >= rate([0] * n) * (1 - 1e-9)
    if len(groups) == 1:
        same = max(rate([d] * n) for d in range(len(groups[0][1]) + 1))
        assert rate(depths) >= same / 1.0051


def test_a_part_of_a_group_fills_a_tile():
    """Four equal requests and tiles of six rows: two of them get a draft."""
    costs = StepCosts({n: float(-(-n // 6)) for n in range(1, 30)}, {1: 0.01}, {1: 0.01}, 0.01)
    found = best_depths([Group(4, [0.6, 0.3])], Base(4, 4.0), costs)
    assert (found.depths, found.of, found.more) == ([0], 0, 2)


def test_drafts_that_were_asked_for_are_paid_for_already():
    """A pinned request of depth 2 opens both passes; joining them costs the rows alone."""
    costs = StepCosts({1: 1.0}, {1: 5.0}, {1: 5.0}, 0.0)
    alone = best_depths([Group(1, [0.5, 0.4])], Base(1, 1.0), costs)
    joined = best_depths([Group(1, [0.5, 0.4])], Base(4, 2.5, drafting=[1, 1]), costs)
    assert (alone.depths, joined.depths) == ([0], [2])
