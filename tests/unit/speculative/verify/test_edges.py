"""Rejection and block at the edges: p = q, nothing in common, zeros, greedy, no drafts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nextn.draft import Draft
from nextn.speculative.verify import block, rejection
from nextn.speculative.verify.exact import accepted_path

MODES = [rejection, block]
V = 5
COIN = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)


@st.composite
def distributions(draw: st.DrawFn, rows: int) -> Tensor:
    """[rows, V] f32 with many zeros."""
    weights = st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.01, 0.5, 1.0]), min_size=V, max_size=V)
    found = [draw(weights.filter(lambda w: sum(w) > 1e-3)) for _ in range(rows)]
    table = torch.tensor(found).view(rows, V)
    return table / table.sum(-1, keepdim=True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int], list[float]]:
    n = draw(st.integers(0, 4))
    p, q = draw(distributions(n + 1)), draw(distributions(n))
    drafts = [draw(st.sampled_from(row.nonzero()[:, 0].tolist())) for row in q]
    return p, q, drafts, [draw(COIN) for _ in range(n)]


@pytest.mark.parametrize("mode", MODES)
@given(cases())
def test_a_prefix_and_weights_to_draw_from(mode, case):
    p, q, drafts, coins = case
    path, final = mode.verify(p, q, drafts, coins)
    n = len(path)
    assert list(path) == list(range(n))
    assert all(p[j, drafts[j]] > 0 for j in path)  # what the target would never say does not hold
    assert final.shape == (V,)
    assert final.isfinite().all()
    assert (final >= 0).all()
    assert final.sum() > 0
    assert (final[p[n] == 0] == 0).all()
    if mode is rejection and n < len(drafts) and len(drafts):
        assert final[drafts[n]] <= p[n, drafts[n]]


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
def test_equal_distributions_hold_throughout(mode, data):
    p = data.draw(distributions(4))
    drafts = [data.draw(st.sampled_from(row.nonzero()[:, 0].tolist())) for row in p[:3]]
    path, final = mode.verify(p, p[:3], drafts, [data.draw(COIN) for _ in drafts])
    assert len(path) == 3
    assert torch.equal(final, p[3].double())


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(COIN, min_size=2, max_size=2))
def test_nothing_in_common_holds_nothing(mode, coins):
    p = torch.tensor([[0.5, 0.5, 0, 0], [0.25, 0.75, 0, 0], [1.0, 0, 0, 0]])
    q = torch.tensor([[0, 0, 0.5, 0.5], [0, 0, 0.1, 0.9]])
    path, final = mode.verify(p, q, [2, 3], coins)
    assert len(path) == 0
    assert torch.equal(final, p[0].double())


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
def test_greedy_is_exact(mode, data):
    tokens = st.lists(st.integers(0, V - 1), min_size=4, max_size=4)
    choices, drafts = data.draw(tokens), data.draw(tokens)[:3]
    p, q = torch.eye(V)[choices], torch.eye(V)[drafts]
    path, final = mode.verify(p, q, drafts, [data.draw(COIN) for _ in drafts])
    assert list(path) == accepted_path(Draft(drafts), choices)
    assert final.argmax() == choices[len(path)]
    assert (final > 0).sum() == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_turned_down_by_rounding(mode):
    """p and q differ in the last bit, and the coin lies between: nothing of p - q is left to draw from."""
    q = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    p = torch.tensor([[0.5 - 1e-16, 0.5], [1.0, 0.0]], dtype=torch.float64)
    path, final = mode.verify(p, q, [0], [1.0 - 1e-16])
    assert len(path) == 0
    assert torch.equal(final, p[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_that_could_not_be_drawn_does_not_hold(mode):
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    path, final = mode.verify(p, q, [1], [0.5])
    assert len(path) == 0
    assert final.tolist() == [0.0, 0.5]
