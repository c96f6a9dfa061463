"""What steps take against the table: what shows of each part, and what noise may not do to it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.pace import AT_ALL, EXTEND, PASS, PLAIN, ROWS, Pace

N = 16
COSTS = StepCosts(
    {1: 1e-3, 512: 52.1e-3}, {1: 0.1e-3, 512: 5.2e-3}, {1: 0.3e-3, 512: 5.4e-3}, 1e-3, {1: 0.1e-3, 64: 1e-3}
)


def work(luck, n=N):
    """As gated drafts make it: more or fewer rows, passes or none."""
    drafts = luck.randint(n // 2, 3 * n)
    passes = [luck.randint(1, n) for _ in range(luck.randint(0, 4))]
    return StepWork(n + drafts, n + luck.randint(0, drafts), passes, n, drafts)


def seconds(pace, works, truth, luck, noise):
    return [float(t) * luck.lognormvariate(0, noise) for t in pace.parts(works) @ np.array(truth)]


def serve(pace, truth, luck, stretches=200, noise=0.1, drift=0.03, without=()):
    """Stretches of steps on a machine whose speed wanders; those numbered in `without` have no drafts."""
    slow, before = 1.0, False
    for i in range(stretches):
        slow *= luck.lognormvariate(0, drift)
        plain = i in without
        works = [StepWork(N, requests=N) if plain else work(luck) for _ in range(32)]
        took = [slow * s for s in seconds(pace, works, truth, luck, noise)]
        pace.note(N, works, took, like_before=i > 0 and plain == before)
        before = plain
    return np.array(pace.factors(N)) / pace.factors(N)[PLAIN]


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1e3), st.booleans()), max_size=30), st.integers(0)
)
def test_whatever_is_seen_factors_are_factors(notes, seed):
    pace, luck = Pace(COSTS), random.Random(seed)
    for n, slow, like in notes:
        works = [work(luck, n) for _ in range(5)]
        pace.note(n, works, seconds(pace, works, [slow] * 7, luck, 1.0), like)
    for n in (1, 5, 64):
        factors = pace.factors(n)
        assert all(0.0 < f < 1e9 for f in factors[:AT_ALL])
        for one in pace.parts([work(luck, n), StepWork(n, requests=n)]):
            assert pace.seconds(n, one) > 0.0
            assert pace.spread(n, one, one) == pytest.approx(0.0, abs=1e-6)


def test_what_a_table_says_is_kept_where_it_is_right():
    found = serve(Pace(COSTS), [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0], random.Random(0))
    assert found[ROWS] == pytest.approx(1.0, abs=0.1)
    assert found[EXTEND] == pytest.approx(1.0, abs=0.25)
    assert found[PASS] == pytest.approx(1.0, abs=0.25)


def test_parts_that_the_table_misses_show_whatever_the_machine_does():
    """Rows cost half of what was said, passes twice as much, on a machine that becomes twice as slow."""
    pace = Pace(COSTS)
    found = serve(pace, [1.0, 0.5, 1.0, 1.0, 2.0, 2.0, 0.0], random.Random(1), drift=0.06)
    assert found[ROWS] == pytest.approx(0.5, abs=0.1)
    assert found[PASS] == pytest.approx(2.0, rel=0.2)


def test_that_drafts_cost_something_at_all_shows_when_there_are_none_for_a_while():
    truth = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.3]
    never, now_and_then = Pace(COSTS), Pace(COSTS)
    serve(never, truth, random.Random(2))
    found = serve(now_and_then, truth, random.Random(2), without=range(5, 200, 10))
    assert found[AT_ALL] == pytest.approx(0.3, abs=0.08)
    with_drafts, plain = now_and_then.parts([StepWork(3 * N, 2 * N, [N], N, 2 * N), StepWork(N, requests=N)])
    assert now_and_then.spread(N, with_drafts, plain) < 0.5 * never.spread(N, with_drafts, plain)


def test_an_outlier_says_little():
    pace, luck = Pace(COSTS), random.Random(3)
    truth = [1.0] * 6 + [0.0]
    before = serve(pace, truth, luck)
    works = [work(luck) for _ in range(32)]
    took = seconds(pace, works, truth, luck, 0.1)
    took[7] *= 1000.0
    pace.note(N, works, took, like_before=True)
    after = np.array(pace.factors(N)) / pace.factors(N)[PLAIN]
    assert np.abs(after - before).max() < 0.05


def test_a_new_batch_size_starts_from_the_nearest():
    pace, luck = Pace(COSTS), random.Random(4)
    serve(pace, [1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0], luck)
    assert pace.factors(N * 2)[ROWS] == pace.factors(N)[ROWS]
    drafted, plain = pace.parts([work(luck), StepWork(N, requests=N)])
    assert pace.spread(2 * N, drafted, plain) > 1.3 * pace.spread(N, drafted, plain)


def test_another_machine_is_believed_at_once():
    """Ten times as slow as a whole: what is known of its parts stays known."""
    pace, luck = Pace(COSTS), random.Random(5)
    truth = [1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0]
    before = serve(pace, truth, luck)
    works = [work(luck) for _ in range(32)]
    expected = [pace.seconds(N, parts) for parts in pace.parts(works)]
    pace.note(N, works, [10.0 * s for s in expected], like_before=True)
    after = [pace.seconds(N, parts) for parts in pace.parts(works)]
    assert after == pytest.approx([10.0 * s for s in expected], rel=0.02)
    assert np.array(pace.factors(N)) / pace.factors(N)[PLAIN] == pytest.approx(before, abs=0.02)
