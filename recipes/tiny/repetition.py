"""Teaches the trunk to leave loops: sequence-level unlikelihood (Welleck et al. 2020, arXiv 1908.04319).

Small models repeat themselves under greedy decoding. The trunk is trained on for a while on real
text, and beside it on its own greedy continuations, where tokens that complete a phrase for the
third time nearby are made less likely. Real code hardly has such tokens (under 1 %), greedy text of
a small model is half made of them.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from model import Tiny
from rollouts import Rollouts
from torch import Tensor

PHRASE = 6  # tokens
TIMES = 2  # earlier occurrences
NEARBY = 72  # tokens back
UNLIKELIHOOD_WEIGHT = 0.5
FEWEST = 256  # the mean is over at least so many tokens, so that rare repetitions weigh less


def repeated(tokens: list[int], start: int) -> list[bool]:
    """For each token from `start` on: does it complete a phrase for the third time nearby?

    >>> repeated([1, 2] * 9, 0).index(True)
    9
    """
    seen: dict[tuple[int, ...], list[int]] = defaultdict(list)
    out = []
    for t in range(len(tokens)):
        again = False
        if t >= PHRASE - 1:
            places = seen[tuple(tokens[t - PHRASE + 1 : t + 1])]
            again = sum(t - place <= NEARBY for place in places) >= TIMES
            places.append(t)
        out.append(again)
    return out[start:]


def repeated_mask(batch: Rollouts) -> Tensor:
    """[N, L] bool over completion tokens."""
    mask = torch.zeros(batch.tokens.shape, dtype=torch.bool)
    for i, (row, s, e) in enumerate(
        zip(batch.tokens.tolist(), batch.starts.tolist(), batch.ends.tolist(), strict=True)
    ):
        mask[i, s:e] = torch.tensor(repeated(row[:e], s))
    return mask


def unlikelihood(model: Tiny, tokens: Tensor, mask: Tensor) -> Tensor:
    """Sum of -log(1 - p(token)) over masked tokens; tokens, mask [B, L]."""
    hidden, _ = model.trunk(tokens)
    rows, at = mask.nonzero(as_tuple=True)
    logits = model.lm_head(hidden[rows, at - 1]).float()
    nll = F.cross_entropy(logits, tokens[rows, at], reduction="none")
    return -torch.log1p(-torch.exp(-nll).clamp(max=1 - 1e-4)).sum()
