"""Rejection sampling: accepts draft after draft with probability min(1, p / q). In place of the first draft
that is rejected, a token is drawn from p - q.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192); Chen et al.,
"Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.speculative.verify.verdict import Verdict, or_else, ratios, residual


def chances(p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
    """[j]: the probability that draft j is accepted, if those before it are."""
    return [min(1.0, r) for r in ratios(p, q, drafts)]


def verify(p: Tensor, q: Tensor, drafts: Sequence[int], coins: Sequence[float]) -> Verdict:
    n = 0
    for coin, chance in zip(coins, chances(p, q, drafts), strict=True):
        if coin >= chance:
            return Verdict(range(n), or_else(residual(p[n], q[n]), p[n]))
        n += 1
    return Verdict(range(n), p[n].double())
