"""Rejection and block leave the target's distribution: exactly, by going through every case, and by
chi-square over random coins. And block has no fewer drafts hold."""

from __future__ import annotations

import pytest
import torch
from support.all_cases import few_or_all
from support.small_distributions import Pair, p_value
from torch import Tensor

from nextn.speculative.verify import block, rejection

MODES = {"rejection": rejection, "block": block}
# (sharpness of the target, error of the drafter): from nearly the same to nothing in common
LEVELS = [(0.5, 0.1), (1.0, 1.0), (2.0, 3.0)]


def outcomes(mode: str, p: Tensor, q: Tensor, drafts: tuple[int, ...]) -> list[float]:
    """[i]: chance that exactly i drafts hold."""
    n = len(drafts)
    if mode == "rejection":
        chance, left, found = rejection.chances(p, q, drafts), 1.0, []
        for c in chance:
            found.append(left * (1 - c))
            left *= c
        return [*found, left]
    chance, left, found = block.chances(p, q, block.covers(p, q, drafts)), 1.0, [0.0] * (n + 1)
    for i in range(n, 0, -1):
        found[i] = left * chance[i - 1]
        left *= 1 - chance[i - 1]
    found[0] = left
    return found


def output(mode: str, pair: Pair, n: int) -> tuple[Tensor, float]:
    """Joint distribution of the first n + 1 tokens where the target goes on alone after one step, and how
    many drafts hold on average. Every chain and every outcome, no chance left to it."""
    joint, length = torch.zeros([pair.vocab] * (n + 1), dtype=torch.float64), 0.0
    for drafts, weight in pair.chains(n):
        p, q = pair.rows(drafts)
        for held, chance in enumerate(outcomes(mode, p, q, drafts)):
            if chance <= 0.0:
                continue
            # Coins of 0 and 1 lead to any outcome that can be.
            verdict = MODES[mode].verify(p, q, drafts, [0.0] * held + [1.0] * (n - held))
            assert list(verdict.path) == list(range(held))
            after = verdict.final / verdict.final.sum()
            for k in range(held + 1, n + 1):
                after = after[..., None] * pair.target[k][drafts[:held]]
            joint[drafts[:held]] += weight * chance * after
            length += weight * chance * held
    return joint, length


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_every_case_adds_up_to_the_target(mode: str, n: int, level: tuple[float, float]) -> None:
    pair = Pair(3, n, *level, seed=n)
    joint, _ = output(mode, pair, n)
    torch.testing.assert_close(joint, pair.joint(n + 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_block_has_no_fewer_drafts_hold(n: int, level: tuple[float, float]) -> None:
    for seed in range(3):
        pair = Pair(3, n, *level, seed=seed)
        one, other = output("rejection", pair, n)[1], output("block", pair, n)[1]
        if n == 1:
            assert other == pytest.approx(one)
        else:
            assert other > one


def test_the_example_of_the_paper() -> None:
    """Section 1 of arXiv 2403.10444: 10/9 of two drafts hold token by token, 11/9 as a block."""
    pair = Pair(2, 2, 0.0, 0.0)
    for k in range(3):
        pair.target[k] = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64).expand([2] * (k + 1))
        pair.draft[k] = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64).expand([2] * (k + 1))
    assert output("rejection", pair, 2)[1] == pytest.approx(10 / 9)
    assert output("block", pair, 2)[1] == pytest.approx(11 / 9)


@pytest.mark.parametrize(
    ("n", "level"),
    few_or_all(
        [(1, LEVELS[1]), (2, LEVELS[2]), (3, LEVELS[0]), (4, LEVELS[1])],
        [(n, level) for n in (1, 2, 3, 4) for level in LEVELS if level != LEVELS[n % 3]],
    ),
)
def test_chi_square_over_coins(n: int, level: tuple[float, float]) -> None:
    """Drafts and coins drawn at random, the joint distribution of the first n + 1 tokens; and how many
    of the same drafts hold."""
    samples, pair = 2500, Pair(4, n, *level, seed=10 + n)
    gen = torch.Generator().manual_seed(n)
    rows = [pair.rows(drafts) for drafts, _ in pair.chains(n)]
    chains = [drafts for drafts, _ in pair.chains(n)]
    weights = torch.tensor([w for _, w in pair.chains(n)])
    picked = weights.multinomial(samples, replacement=True, generator=gen).tolist()
    coins = torch.rand(samples, n, dtype=torch.float64, generator=gen).tolist()
    held = {}
    for mode, module in MODES.items():
        counts = torch.zeros([4] * (n + 1))
        held[mode] = 0
        for chain, u in zip(picked, coins, strict=True):
            verdict = module.verify(*rows[chain], chains[chain], u)
            tokens = list(chains[chain][: len(verdict.path)])
            held[mode] += len(tokens)
            tokens.append(int(verdict.final.multinomial(1, generator=gen)))
            while len(tokens) <= n:
                after = pair.target[len(tokens)][tuple(tokens)]
                tokens.append(int(after.multinomial(1, generator=gen)))
            counts[tuple(tokens)] += 1
        assert p_value(counts.flatten(), pair.joint(n + 1).flatten()) > 1e-3
        if level != LEVELS[0]:  # what the drafter alone would have said is told apart
            other = pair.draft[0]
            for k in range(1, n + 1):
                other = other[..., None] * pair.draft[k]
            assert p_value(counts.flatten(), other.flatten()) < 1e-3
    if n == 1:
        assert held["block"] == held["rejection"]
    elif level != LEVELS[0]:  # where nearly all hold either way
        assert held["block"] > held["rejection"]
