"""The verify modes' random numbers: known by their key, uniform, never shared."""

import pytest
import torch
from scipy import stats

from nextn.sampling.draws import COIN, DRAFT, FINAL, DrawKey, coins, draw
from nextn.sampling.gumbel import gumbel_noise

CPU = torch.device("cpu")


def test_the_key_alone_decides():
    me, others = (
        DrawKey(3, 1, 40, 4),
        [DrawKey(4, 1, 40, 4), DrawKey(3, 2, 40, 1), DrawKey(3, 1, 41, 4), DrawKey(3 + 2**40, 1, 40, 2)],
    )
    (alone,) = coins([me])
    together = coins([others[0], me, *others[1:]])
    assert [len(row) for row in together] == [4, 4, 1, 4, 2]
    assert together[1] == alone
    assert len({coin for row in together for coin in row}) == 4 + 4 + 1 + 4 + 2
    assert coins([DrawKey(3, 1, 40, 2)]) == [alone[:2]]
    assert coins([DrawKey(3, 1, 40, 0)]) == [[]]
    weights = torch.rand(5, 1000, generator=torch.Generator().manual_seed(0))
    drawn = draw(FINAL, weights, [me, *others])
    assert drawn[3] == draw(FINAL, weights[3:4], [others[2]])[0]


def test_a_position_has_new_numbers_in_the_next_step():
    """Depth 2 of root 40 and depth 1 of root 41 are the same position."""
    assert coins([DrawKey(3, 0, 40, 2)])[0][1] != coins([DrawKey(3, 0, 41, 1)])[0][0]
    keys = [DrawKey(3, 0, 40, 2), DrawKey(3, 0, 41, 1)]
    drawn = [token for purpose in (DRAFT, FINAL) for token in draw(purpose, torch.ones(2, 1000), keys)]
    choice = int(gumbel_noise([3], [0], [42], 1000, CPU).argmax())  # that of the one choice
    assert len({*drawn, choice}) == 5


def test_purposes_and_depths_share_no_counter():
    words = {(root + depth, purpose | depth << 2) for root in range(40) for depth in range(1, 17)
             for purpose in (COIN, FINAL, DRAFT)}  # fmt: skip
    assert len(words) == 40 * 16 * 3
    assert all(use for _, use in words)


def test_coins_are_uniform_and_independent():
    table = torch.tensor(coins([DrawKey(seed, 0, 9, 3) for seed in range(5000)]), dtype=torch.float64)
    assert ((table > 0) & (table < 1)).all()
    assert stats.kstest(table.flatten().numpy(), "uniform").pvalue > 1e-3
    assert (table.T.corrcoef() - torch.eye(3)).abs().max() < 0.05


@pytest.mark.parametrize("purpose", [DRAFT, FINAL])
def test_draws_in_proportion(purpose):
    weights = torch.tensor([0.0, 4.0, 1.0, 0.0, 3.0])
    drawn = draw(purpose, weights.expand(8000, -1), [DrawKey(seed, 0, 9, 1) for seed in range(8000)])
    counts = torch.tensor(drawn).bincount(minlength=5)
    assert counts[0] == counts[3] == 0
    assert stats.chisquare(counts[[1, 2, 4]], [4000, 1000, 3000]).pvalue > 1e-3


def test_a_draft_says_nothing_of_the_coin_and_the_final_token():
    keys = [DrawKey(seed, 0, 5, 1) for seed in range(5000)]
    drafts, finals = (torch.tensor(draw(purpose, torch.ones(5000, 2), keys)) for purpose in (DRAFT, FINAL))
    for other in (finals, torch.tensor([row[0] > 0.5 for row in coins(keys)]).long()):
        table = (2 * drafts + other).bincount(minlength=4).view(2, 2)
        assert stats.chi2_contingency(table).pvalue > 1e-3
