"""What drafts are worth: the depth or the thresholds that make most tokens per second, by counted guesses."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import Draft, Shape
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.depth.value import BIN_RATES, BIN_SHARES, CHAINS, REMEMBERED, DraftValue, Setting

CHAIN, MAX_STEPS = Shape(), 8
COST = StepCost(1e-3, 1e-4, a_pass=1e-4, pass_row=1e-5)
USUAL = float(np.dot(BIN_RATES, BIN_SHARES))


def speed(n: int, cost: StepCost, setting: Setting) -> float:
    return n * setting.tokens / (cost.rows(n) + setting.extra)


def fixed(n: int, cost: StepCost, num_steps: int) -> float:
    """Tokens per second where every chain has so many guesses, of the usual rates."""
    tokens = sum(USUAL**d for d in range(num_steps + 1))
    extra = cost.verify(n, n * num_steps) + cost.drafting(num_steps, n * (tokens + num_steps - 1))
    return n * tokens / (cost.rows(n) + extra)


def teach(
    value: DraftValue, cost: StepCost, rates: tuple[float, ...], plans: int = 200, seed: int = 0
) -> Setting:
    """Drafts of 4 guesses, whose kind holds so often: all of them are kept."""
    rng = random.Random(seed)
    for _ in range(plans):
        for _ in range(CHAINS):
            bins = rng.choices(range(9), BIN_SHARES, k=4)
            kinds = bins if value.cuts else range(4)
            held = 0
            for kind in kinds:
                if rng.random() >= rates[kind]:
                    break
                held += 1
            value.note(Draft([0] * 4, bins=bytes(bins) if value.cuts else b""), held)
        setting = value.plan(1, cost, cost.rows(1))
    return setting


@given(
    n=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    row=st.floats(0.01, 1.0),
    expert=st.floats(0.0, 0.2),
    a_pass=st.floats(0.0, 0.5),
    pass_row=st.floats(0.0, 0.05),
    ends=st.booleans(),
)
def test_thresholds_beat_every_fixed_depth(
    n: int, row: float, expert: float, a_pass: float, pass_row: float, ends: bool
) -> None:
    """Where one pays; by the rates that it assumes itself, but for the error of its sample."""
    cost = StepCost(1.0, row, expert, (16, 4), drafted=0.9, a_pass=a_pass, pass_row=pass_row)
    setting = DraftValue(MAX_STEPS, CHAIN, True, ends).plan(n, cost, cost.rows(n))
    assert setting.cutoff is not None
    best = max(fixed(n, cost, k) for k in range(1, MAX_STEPS + 1))
    assert speed(n, cost, setting) >= 0.98 * best or best < n / cost.rows(n)


def test_the_dearer_a_row_the_surer_a_guess_must_be() -> None:
    keeps, tokens = [], []
    for row in (0.0, 0.01, 0.03, 0.1, 0.2, 0.4):
        cost = replace(COST, row=row * COST.fixed)
        setting = DraftValue(MAX_STEPS, CHAIN, True).plan(8, cost, cost.rows(8))
        assert setting.cutoff is not None
        keeps.append(setting.cutoff.row_cost)
        tokens.append(setting.tokens)
    assert keeps == sorted(set(keeps))
    assert keeps[0] == 0.0
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > 2.0 * tokens[-1]


def test_the_dearer_a_pass_the_fewer_there_are() -> None:
    extras = []
    for a_pass in (0.0, 0.1, 0.3, 1.0):
        cost = replace(COST, a_pass=a_pass * COST.fixed)
        setting = DraftValue(MAX_STEPS, CHAIN, True).plan(1, cost, cost.rows(1))
        assert setting.cutoff is not None
        extras.append((setting.cutoff.pass_cost, -setting.tokens, -setting.cutoff.num_steps))
    assert extras == sorted(extras)
    assert extras[0] < extras[-1]


def test_where_passes_do_not_end_with_their_guesses_all_are_paid_for() -> None:
    """As on a device whose guesses nobody reads before the end. Those worth no row are not verified."""
    depths = []
    for a_pass in (0.0, 0.03, 0.1, 1.0):
        cost = replace(COST, a_pass=a_pass * COST.fixed)
        ending, whole = (
            DraftValue(MAX_STEPS, CHAIN, True, ends).plan(1, cost, cost.rows(1)) for ends in (True, False)
        )
        depth, made = whole.num_steps, whole.tokens + whole.num_steps - 1
        assert whole.extra >= cost.drafting(depth, made)
        assert whole.extra - cost.drafting(depth, made) <= cost.verify(1, depth) * (1 + 1e-9)
        assert speed(1, cost, whole) <= 1.01 * speed(1, cost, ending)
        depths.append(depth)
    assert depths == sorted(depths, reverse=True)
    assert depths[0] == MAX_STEPS
    assert depths[-1] == 1


def test_rates_are_those_of_the_guesses_that_were_verified() -> None:
    rates = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    value = DraftValue(MAX_STEPS, CHAIN, True)
    before = value.plan(1, COST, COST.rows(1))
    setting = teach(value, COST, rates)
    assert setting.cutoff is not None
    assert setting.cutoff.rates == pytest.approx(rates, abs=0.05)
    assert setting.cutoff.mean_rate == pytest.approx(np.dot(rates, BIN_SHARES), abs=0.03)
    assert setting.tokens < before.tokens - 1.0


def test_texts_that_change_are_noticed() -> None:
    value = DraftValue(MAX_STEPS, CHAIN, True)
    teach(value, COST, (0.1,) * 9, plans=400)
    setting = teach(value, COST, (0.9,) * 9, plans=600)
    assert setting.cutoff is not None
    assert min(setting.cutoff.rates) > 0.8


def test_a_guess_that_was_not_verified_says_nothing_of_its_kind() -> None:
    """The second one was made and not kept; nor was there anything to learn behind a guess that failed."""
    value = DraftValue(MAX_STEPS, CHAIN, True)
    for _ in range(50):
        for _ in range(CHAINS):
            value.note(Draft([7], bins=bytes([8, 2])), 1)
            value.note(Draft([7, 7], bins=bytes([0, 5])), 0)
        setting = value.plan(1, COST, COST.rows(1))
    assert setting.cutoff is not None
    assert setting.cutoff.rates[2] == pytest.approx(BIN_RATES[2])
    assert setting.cutoff.rates[5] == pytest.approx(BIN_RATES[5])
    assert setting.cutoff.rates[8] > 0.99 > 0.05 > setting.cutoff.rates[0]


def test_without_confidence_the_depth_is_what_pays() -> None:
    def best(rates: tuple[float, ...], cost: StepCost) -> int:
        def gain(depth: int) -> float:
            tokens = 1.0 + float(np.cumprod(rates)[:depth].sum())
            extra = cost.verify(1, depth) + cost.drafting(depth, tokens + depth - 1)
            return tokens / (cost.rows(1) + extra)

        return max(range(1, 5), key=gain)

    cheap, dear = replace(COST, a_pass=1e-5), replace(COST, row=5e-4, a_pass=2e-4)
    found = set()
    for rates in ((0.9, 0.9, 0.9, 0.9), (0.9, 0.5, 0.3, 0.1), (0.8, 0.75, 0.1, 0.1)):
        for cost in (cheap, dear):
            setting = teach(DraftValue(4, CHAIN, False), cost, rates)
            assert setting.cutoff is None
            assert setting.num_steps == best(rates, cost)
            found.add(setting.num_steps)
    assert len(found) >= 3


def test_a_cutoff_needs_drafts_with_confidence() -> None:
    """A chain whose guesses were not drawn has none; it tells nothing of those that have."""
    value = DraftValue(MAX_STEPS, CHAIN, True)
    before = value.plan(1, COST, COST.rows(1))
    for _ in range(CHAINS):
        value.note(Draft([1, 2, 3]), 0)
    assert value.plan(1, COST, COST.rows(1)) == before


def test_trees_cost_all_of_their_nodes() -> None:
    cost = replace(COST, row=1e-5)
    narrow = DraftValue(4, Shape(2, 8), False).plan(1, cost, cost.rows(1))
    wide = DraftValue(4, Shape(8, 256), False).plan(1, cost, cost.rows(1))
    assert narrow.cutoff is wide.cutoff is None
    assert wide.num_steps < narrow.num_steps == 4
    depth, shape = narrow.num_steps, Shape(2, 8)
    rows = narrow.tokens + 2.0 * (depth - 1)  # two nodes of each depth but the last are grown on
    expected = cost.verify(1, shape.size(depth)) + cost.drafting(depth, rows)
    assert narrow.extra == pytest.approx(expected)


def test_trees_are_counted_by_depth() -> None:
    value = DraftValue(4, Shape(2, 8), False)
    tree = Draft([1, 2, 3, 4], parents=[-1, -1, 0, 2])
    for _ in range(40):
        for _ in range(CHAINS):
            value.note(tree, 1)
        setting = value.plan(1, COST, COST.rows(1))
    assert setting.num_steps == 1
    assert setting.tokens == pytest.approx(2.0, abs=0.02)


def test_what_is_remembered_is_bounded() -> None:
    value = DraftValue(MAX_STEPS, CHAIN, True)
    for _ in range(40):
        for _ in range(50 * CHAINS):
            value.note(Draft([0] * 8, bins=bytes(range(8))), 8)
        assert len(value._noted) <= 2 * CHAINS
        value.plan(1, COST, COST.rows(1))
        assert not value._noted
    assert max(value._seen.max(), value._made.max()) <= REMEMBERED
    assert (value._held <= value._seen).all()


def test_a_draft_deeper_than_the_deepest_counts_as_far_as_that() -> None:
    value = DraftValue(2, CHAIN, False)
    for _ in range(CHAINS):
        value.note(Draft([0] * 5), 5)
    assert value.plan(1, COST, COST.rows(1)).num_steps == 2


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize(
    "cost",
    [
        StepCost(1e-3, 0.0),
        StepCost(0.0, 1e-6),
        StepCost(1e-3, 1e-4, drafted=0.0),
        StepCost(1e-9, 0.0, a_pass=1.0, pass_row=1.0),
        StepCost(1e-3, 1.0, 1.0, (8, 2), 1.0, 50.0, 50.0, 50.0),
    ],
    ids=["rows cost nothing", "nothing but rows", "drafts cost nothing", "passes alone", "all is dear"],
)
def test_costs_of_any_kind_make_a_setting(cost: StepCost, n: int, cuts: bool) -> None:
    setting = DraftValue(MAX_STEPS, CHAIN, cuts).plan(n, cost, cost.rows(n))
    assert 1 <= setting.num_steps <= MAX_STEPS
    assert 1.0 <= setting.tokens <= MAX_STEPS + 1
    assert 0.0 <= setting.extra < float("inf")


def test_it_is_the_same_in_every_run() -> None:
    settings = [teach(DraftValue(MAX_STEPS, CHAIN, True), COST, BIN_RATES, plans=20) for _ in range(2)]
    assert settings[0] == settings[1]
