"""A target and a drafter over a few tokens, whose distributions depend on all tokens before, and a chi-square
test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from scipy import stats
from torch import Tensor


class Pair:
    """target[k], draft[k]: [V, ..., V, V] f64, the distribution after k tokens, for k up to `length`.

    sharpness: scale of the target's logits. error: scale of the difference between the drafter's logits and
    these.
    """

    def __init__(self, vocab: int, length: int, sharpness: float, error: float, seed: int = 0) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.target: list[Tensor] = []
        self.draft: list[Tensor] = []
        for k in range(length + 1):
            logits = torch.randn([vocab] * (k + 1), generator=gen, dtype=torch.float64) * sharpness
            wrong = torch.randn([vocab] * (k + 1), generator=gen, dtype=torch.float64) * error
            self.target.append(logits.softmax(-1))
            self.draft.append((logits + wrong).softmax(-1))

    def rows(self, drafts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """p [n + 1, V] and q [n, V] of a chain of n drafts."""
        n = len(drafts)
        p = torch.stack([self.target[k][tuple(drafts[:k])] for k in range(n + 1)])
        q = [self.draft[k][tuple(drafts[:k])] for k in range(n)]
        return p, torch.stack(q) if q else p.new_empty(0, self.vocab)

    def joint(self, length: int) -> Tensor:
        """[V] * length: the target's probability of each sequence of first tokens."""
        found = self.target[0]
        for k in range(1, length):
            found = found[..., None] * self.target[k]
        return found

    def chains(self, n: int) -> list[tuple[tuple[int, ...], float]]:
        """Every chain of n drafts, with the drafter's probability of it."""
        return [
            (drafts, float(torch.stack([self.draft[k][drafts[: k + 1]] for k in range(n)]).prod()))
            for drafts in product(range(self.vocab), repeat=n)
        ]


def p_value(counts: Tensor, probs: Tensor, least: float = 8) -> float:
    """The p-value of a chi-square test of counts against probs, both flat. Cells are merged until each has an
    expected count of at least `least`."""
    total = int(counts.sum())
    seen, expected = [0], [0.0]
    for i in probs.argsort().tolist():
        seen[-1] += int(counts[i])
        expected[-1] += float(probs[i]) * total
        if expected[-1] >= least:
            seen.append(0)
            expected.append(0.0)
    seen[-2:], expected[-2:] = [sum(seen[-2:])], [sum(expected[-2:])]
    assert len(seen) > 2
    return float(stats.chisquare(seen, expected).pvalue)
