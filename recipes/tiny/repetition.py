"""Trains the trunk to leave loops: sequence-level unlikelihood (Welleck et al. 2020, arXiv 1908.04319).

Small models repeat themselves under greedy decoding. So the trunk is trained for some more time on real text
and on its own greedy continuations. In these, a token that completes a phrase for the third time nearby is
made less likely. Real code has few such tokens (under 1 %); in greedy text of a small model they are half of
all tokens.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from model import Tiny
from rollouts import Rollouts
from torch import Tensor

PHRASE = 6  # tokens of a phrase
TIMES = 2  # minimum number of earlier occurrences
NEARBY = 72  # maximum distance of an earlier occurrence, in tokens
UNLIKELIHOOD_WEIGHT = 0.5
FEWEST = 256  # minimum divisor of the mean over repeated tokens, so that a few repetitions weigh less


def repeated(tokens: list[int], start: int) -> list[bool]:
    """For each token from `start` on: whether it completes a phrase for the third time nearby.

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
    """[N, L] bool: which completion tokens are repeated."""
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
