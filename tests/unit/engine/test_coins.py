"""The verify modes' random numbers: known by their key, uniform, never shared."""

import pytest
import torch
from scipy import stats

from nextn.engine.coins import COIN, DRAFT, FINAL, Dice
from nextn.engine.gumbel import gumbel_noise

CPU = torch.device("cpu")


def test_the_key_alone_decides():
    assert Dice(3, 1, 40).coins(4) == Dice(3, 1, 40).coins(4)
    assert Dice(3, 1, 40).coins(4)[:2] == Dice(3, 1, 40).coins(2)
    others = [Dice(4, 1, 40), Dice(3, 2, 40), Dice(3, 1, 41), Dice(3 + 2**40, 1, 40)]
    assert all(set(d.coins(4)).isdisjoint(Dice(3, 1, 40).coins(4)) for d in others)
    assert Dice(3, 1, 40).coins(0) == []


def test_a_position_has_new_numbers_in_the_next_step():
    """Depth 2 of root 40 and depth 1 of root 41 are the same position."""
    assert Dice(3, 0, 40).coins(2)[1] != Dice(3, 0, 41).coins(1)[0]
    weights = torch.ones(1000)
    drawn = {
        Dice(3, 0, 42 - depth).draw(purpose, weights, depth) for depth in (1, 2) for purpose in (DRAFT, FINAL)
    }
    choice = int(gumbel_noise([3], [0], [42], 1000, CPU).argmax())  # that of the one choice
    assert len(drawn | {choice}) == 5


def test_purposes_and_depths_share_no_counter():
    words = {(root + depth, purpose | depth << 2) for root in range(40) for depth in range(1, 17)
             for purpose in (COIN, FINAL, DRAFT)}  # fmt: skip
    assert len(words) == 40 * 16 * 3
    assert all(use for _, use in words)


def test_coins_are_uniform_and_independent():
    table = torch.tensor([Dice(seed, 0, 9).coins(3) for seed in range(2000)], dtype=torch.float64)
    assert ((table > 0) & (table < 1)).all()
    assert stats.kstest(table.flatten().numpy(), "uniform").pvalue > 1e-3
    assert (table.T.corrcoef() - torch.eye(3)).abs().max() < 0.1


@pytest.mark.parametrize("purpose", [DRAFT, FINAL])
def test_draws_in_proportion(purpose):
    weights = torch.tensor([0.0, 4.0, 1.0, 0.0, 3.0])
    drawn = torch.tensor([Dice(seed, 0, 9).draw(purpose, weights, 1) for seed in range(800)])
    counts = drawn.bincount(minlength=5)
    assert counts[0] == counts[3] == 0
    assert stats.chisquare(counts[[1, 2, 4]], [400, 100, 300]).pvalue > 1e-3


def test_a_draft_says_nothing_of_the_coin_and_the_final_token():
    weights = torch.ones(2)
    seeds = range(700)
    drafts = torch.tensor([Dice(s, 0, 5).draw(DRAFT, weights, 1) for s in seeds])
    finals = torch.tensor([Dice(s, 0, 5).draw(FINAL, weights, 1) for s in seeds])
    coins = torch.tensor([Dice(s, 0, 5).coins(1)[0] > 0.5 for s in seeds]).long()
    for other in (finals, coins):
        table = (2 * drafts + other).bincount(minlength=4).view(2, 2)
        assert stats.chi2_contingency(table).pvalue > 1e-3
