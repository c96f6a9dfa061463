"""Block verification: accepts the longest prefix of the chain that passes as a whole.

Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444). A ratio p / q above 1
is cut off at every draft in `rejection`. Here it increases the chances of the drafts after it. A prefix is
rejected only if all longer prefixes are. No lossless method accepts more drafts of one chain on average.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.speculative.verify.verdict import Verdict, or_else, ratios, residual


def covers(p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
    """[i]: the probability that the first i drafts pass, given these drafts: min(1, last cover * p / q)."""
    found = [1.0]
    for r in ratios(p, q, drafts):
        found.append(min(1.0, found[-1] * r))
    return found


def chances(p: Tensor, q: Tensor, cover: Sequence[float]) -> list[float]:
    """[i]: the probability that the first i + 1 drafts pass, if no longer prefix does."""
    n = len(cover) - 1
    found = []
    for i in range(1, n):
        left = float(residual(p[i], q[i], cover[i]).sum())
        # If nothing is left, longer prefixes already pass as often as possible.
        found.append(left / (left + (1.0 - cover[i])) if left > 0.0 else 0.0)
    return [*found, cover[n]] if n else []


def verify(p: Tensor, q: Tensor, drafts: Sequence[int], coins: Sequence[float]) -> Verdict:
    cover = covers(p, q, drafts)
    held = [i for i, (coin, h) in enumerate(zip(coins, chances(p, q, cover), strict=True), 1) if coin < h]
    n = held[-1] if held else 0
    if n == len(drafts):
        return Verdict(range(n), p[n].double())
    return Verdict(range(n), or_else(residual(p[n], q[n], cover[n]), p[n]))
