"""Filters the tokens that a draw can choose: logits divided by temperature, then top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.ops.base import DrawParams


def scaled_logits(logits: Tensor, draws: Sequence[DrawParams]) -> Tensor:
    """filter(logits / T), [N, V] f32. draws: one per row."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    logits = logits / column([d.temperature for d in draws])
    return filter_logits(logits, [d.top_k for d in draws], [d.top_p for d in draws], [d.min_p for d in draws])


def filter_logits(logits: Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> Tensor:
    """Sets the logits of excluded tokens to -infinity: by top-k, then by top-p over the remaining tokens,
    then by min-p. logits [N, V] f32, already divided by the temperature. Among equal logits the smaller token
    id ranks first. The best token is never excluded."""
    vocab = logits.shape[1]
    rows = [
        i
        for i, (k, p, m) in enumerate(zip(top_k, top_p, min_p, strict=True))
        if 0 < k < vocab or p < 1.0 or m > 0.0
    ]
    if not rows:
        return logits

    def column(values: list[float]) -> Tensor:
        picked = [values[i] for i in rows]
        return torch.tensor(picked, dtype=torch.float32, device=logits.device)[:, None]

    index = torch.tensor(rows, device=logits.device)
    limits = [float(k) if k > 0 else float(vocab) for k in top_k]
    kept = filter_rows(logits.index_select(0, index), column(limits), column(top_p), column(min_p))
    return logits.index_copy(0, index, kept)


def filter_rows(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`filter_logits` for rows with a filter. The numbers are on the device, [N, 1] f32 each. top_k: the size
    of the vocabulary if top-k is off."""
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)[None]
    ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
    probs = ordered.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    drop = (before >= top_p) | (probs < min_p * probs[:, :1])
    drop[:, 0] = False
    ordered = ordered.masked_fill(drop, float("-inf"))
    return torch.empty_like(ordered).scatter_(1, ids, ordered)
