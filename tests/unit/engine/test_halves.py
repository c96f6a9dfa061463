"""Two-batch overlap: where a step is cut, and when it pays."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from nextn.engine.halves import BETTER, EVERY, LEAST_ROWS, TRIAL, Halves, in_halves
from nextn.layers.batch import Span

LENGTHS = st.lists(st.integers(1, 40), max_size=8)


@given(LENGTHS, st.randoms())
def test_halves_are_about_even_and_hold_all_rows(lengths: list[int], rng: random.Random) -> None:
    spans = [Span(list(range(n)), rng.randrange(9), [i]) for i, n in enumerate(lengths)]
    cut, first = in_halves(spans)
    total = sum(lengths)
    assert abs(2 * first - total) <= max(1, total / 4)
    assert [t for span in cut for t in span.tokens] == [t for span in spans for t in span.tokens]
    ends = [0]
    for span in cut:
        ends.append(ends[-1] + len(span.tokens))
    assert first in ends  # so that no span is in both
    whole = {(span.start + i, *span.pages) for span in spans for i in range(len(span.tokens))}
    assert {(span.start + i, *span.pages) for span in cut for i in range(len(span.tokens))} == whole


def test_trees_are_not_cut() -> None:
    tree = Span([1, 2, 3, 4], 5, [1], [[5], [5, 6], [5, 7], [5, 6, 8]])
    assert in_halves([tree]) == ([tree], 0)
    assert in_halves([Span([1], 0, [2]), tree])[1] == 1


def run(halves: Halves, steps: int, whole: float, half: float, waiting: float) -> list[bool]:
    """What is wanted of each of so many steps that take so long."""
    made = []
    for _ in range(steps):
        wanted = halves.wanted(64)
        made.append(wanted)
        halves.took(64, wanted, half if wanted else whole, waiting)
    return made


def test_where_waiting_is_long_and_halves_are_faster() -> None:
    made = run(Halves(True), 10 * EVERY, whole=1.0, half=0.7, waiting=0.3)
    assert made.count(False) <= 10 * TRIAL  # the first ones, and trials
    assert not made[0]


def test_where_they_are_not_faster() -> None:
    for half in (1.2, BETTER * 1.001):
        made = run(Halves(True), 10 * EVERY, whole=1.0, half=half, waiting=0.3)
        assert TRIAL <= made.count(True) <= 10 * TRIAL


def test_where_nobody_waits_they_are_not_even_tried() -> None:
    assert not any(run(Halves(True), 10 * EVERY, whole=1.0, half=0.5, waiting=0.05))


def test_it_changes_its_mind() -> None:
    halves = Halves(True)
    assert run(halves, 2 * EVERY, whole=1.0, half=0.7, waiting=0.3)[-1]
    made = run(halves, 10 * EVERY, whole=1.0, half=1.5, waiting=0.3)
    assert made[-EVERY:].count(True) <= TRIAL


def test_who_decides() -> None:
    assert not Halves(False, always=True).wanted(100)
    assert Halves(True, always=True).wanted(1)
    assert not Halves(True, always=True).wanted(0)
    small = Halves(True)
    small.took(LEAST_ROWS - 1, False, 1.0, 0.9)
    assert not small.wanted(LEAST_ROWS - 1)


def test_one_slow_step_is_no_reason() -> None:
    halves = Halves(True)
    for i in range(5 * EVERY):
        wanted = halves.wanted(64)
        halves.took(64, wanted, 9.0 if i % 7 == 0 else 0.7 if wanted else 1.0, 0.3)
    assert halves.wanted(64)


def test_where_they_are_a_little_slower_and_times_vary() -> None:
    """Only trials use them, but for one step in a hundred."""
    rng, used = random.Random(7), 0
    for _ in range(20):
        halves = Halves(True)
        for _ in range(4 * EVERY):
            wanted = halves.wanted(64)
            used += wanted
            halves.took(64, wanted, max(0.5, rng.gauss(1.05 if wanted else 1.0, 0.08)), 0.3)
    assert used / 20 <= 4 * TRIAL + 4 * EVERY / 100
