"""The result of verification, and two functions that the lossless modes share: ratios and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Verdict(NamedTuple):
    path: Sequence[int]  # indices of the accepted drafts, from the root on
    final: Tensor  # [V] f64: weights from which the token after them is drawn


def ratios(p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
    """p / q of each draft. 0 if q is 0: such a draft was drawn by a rounding error."""
    assert p.shape[0] == len(drafts) + 1
    assert q.shape[0] == len(drafts)
    at = torch.tensor(drafts, dtype=torch.int64, device=p.device)[:, None]
    target = p[:-1].gather(1, at)[:, 0].double().tolist()
    draft = q.gather(1, at)[:, 0].double().tolist()
    return [a / b if b > 0.0 else 0.0 for a, b in zip(target, draft, strict=True)]


def residual(p: Tensor, q: Tensor, scale: float = 1.0) -> Tensor:
    """[..., V] f64: the part of scale * p that drafts drawn from q do not cover."""
    return (scale * p.double() - q.double()).clamp_(min=0.0)


def or_else(weights: Tensor, p: Tensor) -> Tensor:
    """`weights`, or p if all weights are 0: then a draft was rejected by a rounding error."""
    return weights if float(weights.sum()) > 0.0 else p.double()
