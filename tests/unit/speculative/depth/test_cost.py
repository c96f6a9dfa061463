"""The fit of step costs: it finds the costs that made the steps, from few of them and from noisy ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.depth.cost import StepCost, fit
from nextn.speculative.work import StepWork

SIZES = (1, 2, 4, 8, 16, 32, 64)
DRAFTS = ((0, 1), (0, 4), (2, 1), (4, 2))  # (drafts verified, made)
NEAR, FAR = 32, 1024


@st.composite
def step_costs(draw: st.DrawFn) -> StepCost:
    """Of machines and models of any speed: parts relative to the fixed one."""
    fixed = draw(st.floats(1e-5, 0.1))
    part = st.floats(0.02, 1.0)
    return StepCost(
        fixed,
        draw(part) * fixed,
        draw(st.just(0.0) | part) * fixed,
        draw(st.sampled_from([(1, 1), (8, 2), (64, 6), (256, 8)])),
        drafter=draw(st.just(0.0) | part) * fixed,
        a_pass=draw(part) * fixed,
        pass_row=draw(st.floats(0.001, 0.1)) * fixed,
        request=draw(st.just(0.0) | part) * fixed,
    )


def plain(n: int, near: int = 0) -> StepWork:
    return StepWork(n, 0, (), n, 0, near * n)


def drafting(n: int, verified: int, made: int, near: int = 0) -> StepWork:
    """Every second draft holds."""
    return StepWork(n * (1 + verified), n + n * verified // 2, (n,) * (made - 1), n, n * verified, near * n)


def works(sizes: Sequence[int] = SIZES, near: int = 0) -> list[StepWork]:
    return [plain(n, near) for n in sizes] + [drafting(n, *d, near) for n in sizes for d in DRAFTS]


def seconds(cost: StepCost, work: StepWork) -> float:
    return cost.base(work) + cost.extra(work)


def timed(cost: StepCost, steps: Sequence[StepWork]) -> list[tuple[StepWork, float]]:
    return [(work, seconds(cost, work)) for work in steps]


@given(step_costs())
def test_exact_steps_give_their_costs_back(cost: StepCost) -> None:
    found = fit(timed(cost, works()), cost.experts)
    for work in works((1, 3, 7, 20, 64)):
        assert found.base(work) == pytest.approx(cost.base(work), rel=1e-3)
        assert found.extra(work) == pytest.approx(cost.extra(work), rel=1e-2)


@given(step_costs(), st.integers(0, 2**32))
def test_noise_moves_them_by_about_as_much(cost: StepCost, seed: int) -> None:
    rng = random.Random(seed)
    steps = [(work, s * rng.uniform(0.98, 1.02)) for work, s in timed(cost, works())]
    found = fit(steps, cost.experts)
    for work in works((1, 3, 7, 20, 64)):
        assert seconds(found, work) == pytest.approx(seconds(cost, work), rel=0.15)


@given(step_costs(), st.floats(1e-4, 1e-2))
def test_what_context_costs(cost: StepCost, share: float) -> None:
    """Four requests, near and far. What the near ones read is part of their rows."""
    cost = replace(cost, context=share * cost.row / NEAR)
    found = fit(timed(cost, [*works(near=NEAR), plain(4, FAR)]), cost.experts)
    assert found.context == pytest.approx(cost.context, rel=0.1)
    for near in (NEAR, 500, FAR):
        work = drafting(16, 2, 2, near)
        assert seconds(found, work) == pytest.approx(seconds(cost, work), rel=0.05)


@given(step_costs(), st.floats(1e-4, 1e-2), st.floats(1e-4, 1e-2))
def test_what_each_row_costs_that_attends(cost: StepCost, share: float, each: float) -> None:
    """What is read once for all rows of a request, and what is computed for each of them."""
    cost = replace(cost, context=share * cost.row / NEAR, attention=each * cost.row / NEAR)
    steps = [*works(near=NEAR), plain(4, FAR), drafting(4, 2, 1, FAR)]
    found = fit(timed(cost, steps), cost.experts)
    assert found.context + found.attention == pytest.approx(cost.context + cost.attention, rel=0.1)
    for near in (NEAR, 500, FAR):
        work = drafting(16, 2, 2, near)
        assert found.extra(work) == pytest.approx(cost.extra(work), rel=0.1)
        here = cost.at(near)
        assert here.rows(16) == pytest.approx(cost.base(plain(16, near)))
        assert here.extra(drafting(16, 2, 2)) == pytest.approx(cost.extra(work))


@given(
    st.sets(st.sampled_from(SIZES), min_size=1),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_any_times_make_costs_that_are_not_negative(
    sizes: set[int], far: bool, drafts: bool, seed: int
) -> None:
    """What a busy machine measures may say anything: that drafts take less than none, and more rows less."""
    rng = random.Random(seed)
    steps = [w for w in works(sorted(sizes), NEAR) if drafts or not w.extended]
    steps += [plain(min(sizes), FAR)] * far
    found = fit([(work, 10 ** rng.uniform(-5, 0)) for work in steps], (8, 2))
    parts = astuple(replace(found, experts=()))
    assert all(part >= 0.0 for part in parts if isinstance(part, float))
    assert found.rows(1) > 0.0


@given(step_costs(), st.sampled_from(SIZES))
def test_one_batch_size_says_what_its_own_steps_take(cost: StepCost, n: int) -> None:
    steps = timed(cost, works((n,), NEAR))
    found = fit(steps, cost.experts)
    for work, s in steps:
        assert found.base(work) == pytest.approx(cost.base(work), rel=1e-3)
        assert seconds(found, work) == pytest.approx(s, rel=0.2)


@given(step_costs())
def test_without_steps_that_draft_the_others_are_fitted(cost: StepCost) -> None:
    found = fit(timed(cost, [plain(n) for n in SIZES]), cost.experts)
    for n in SIZES:
        assert found.rows(n) == pytest.approx(cost.rows(n), rel=1e-3)


def test_experts_that_rows_wake() -> None:
    """Of 8, each row 2 on its own: 2 by one row, 2 + 6 * 2 / 8 = 3.5 by two, never more than all."""
    cost = StepCost(0.0, 0.0, 1.0, (8, 2))
    assert [cost.rows(n) for n in (0, 1, 2)] == pytest.approx([0.0, 2.0, 3.5])
    assert 7.9 < cost.rows(32) < 8.0
    dense = StepCost(1.0, 0.5, 9.0, (1, 1))
    assert dense.rows(3) == 1.0 + 3 * 0.5 + 9.0


def test_what_a_step_takes_without_its_drafts_and_what_they_add() -> None:
    cost = StepCost(
        10.0, 2.0, context=0.01, drafted=0.5, drafter=1.5, a_pass=3.0, pass_row=0.25, request=0.75,
        attention=0.04,
    )  # fmt: skip
    # 4 requests, of which one brings 6 rows of a prompt besides; 5 drafts are verified.
    work = StepWork(rows=15, extended=12, passes=(4, 2), requests=4, drafts=5, context=100)
    assert cost.base(work) == 10.0 + 0.75 * 4 + 2.0 * 10 + (0.01 + 0.04) * 100
    verified = 0.5 * (2.0 + 0.04 * 25) * 5
    assert cost.extra(work) == verified + 1.5 + 3 * 3.0 + (12 + 4 + 2) * 0.25


def test_a_step_that_does_not_run_the_drafter_pays_for_its_drafts_alone() -> None:
    cost = StepCost(10.0, 2.0, drafter=1.5, a_pass=3.0, pass_row=0.25)
    assert cost.extra(StepWork(4, 0, (), 4, 0)) == 0.0
    assert cost.extra(StepWork(6, 0, (), 4, 2)) == 4.0
