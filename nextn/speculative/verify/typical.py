"""Typical acceptance: accepts drafts that the target finds likely enough. Lossy unless thresholds are 1.

The rule is that of SGLang's tree_speculative_sampling_target_only (speculative_sampling.cuh), with options
`--speculative-accept-threshold-single` and `-acc`. The children of a node are tried in their order. The
target's probabilities of the children tried so far are summed up. A child is accepted if a random number (the
coin) is at most sum / threshold_acc, or if its own probability is at least threshold_single. Children that
were rejected are left out of the final draw. With thresholds of 1 this is a draw from the target with one
coin, child after child. It is lossless for all drafts. The most likely drafts are accepted most often, so the
drafter adds no noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.draft import Draft
from nextn.speculative.verify.verdict import Verdict, or_else


def verify(
    p: Tensor,
    draft: Draft,
    coins: Sequence[float],
    threshold_single: float,
    threshold_acc: float,
) -> Verdict:
    """Siblings are tried in the order of the nodes. coins: one for each depth.

    >>> p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]])
    >>> verify(p, Draft([0, 1], [-1, -1]), [0.8], 1.0, 1.0).path  # 0.6 is not enough, 0.6 + 0.3 is
    [1]
    """
    assert p.shape[0] == len(draft) + 1
    acc = max(threshold_acc, 1e-9)
    path: list[int] = []
    for coin in coins:
        last = path[-1] if path else -1
        tried: list[int] = []
        total = 0.0
        held = None
        for node in (i for i in range(len(draft)) if draft.parent(i) == last):
            chance = float(p[last + 1, draft.tokens[node]])
            total += chance
            # A token with probability 0 may be forbidden by a grammar or min_tokens.
            if chance > 0.0 and (coin <= total / acc or chance >= threshold_single):
                held = node
                break
            tried.append(draft.tokens[node])
        if held is None:
            out = torch.tensor(tried, dtype=torch.int64, device=p.device)
            weights = p[last + 1].double().index_fill(0, out, 0.0)
            return Verdict(path, or_else(weights, p[last + 1]))
        path.append(held)
    return Verdict(path, p[path[-1] + 1 if path else 0].double())
