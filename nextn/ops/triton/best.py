"""The best token of each row of logits and its confidence, in programs of one row.

A row goes through its lanes in blocks; each lane keeps the best of its own logits, where that was, and the
second best. Nothing is added up, so the result has one value in whatever order the lanes meet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits at a time


@triton.jit
def _best_token(logits, ids, confidence, vocab, row_step, V: tl.constexpr):
    row, v = tl.program_id(0), tl.arange(0, V)
    x = logits + row.to(tl.int64) * row_step
    best = tl.full((V,), float("-inf"), tl.float32)
    second = tl.full((V,), float("-inf"), tl.float32)
    where = v
    for at in range(0, vocab, V):
        z = tl.load(x + at + v, mask=at + v < vocab, other=float("-inf"))
        z = tl.where(z == z, z, float("-inf"))  # not NaN
        ahead = z > best
        second = tl.maximum(second, tl.where(ahead, best, z))
        where = tl.where(ahead, at + v, where)
        best = tl.where(ahead, z, best)
    most = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == most, where, 2147483647), axis=0)
    others = tl.max(tl.where(where == chosen, second, best), axis=0)
    tl.store(ids + row, chosen.to(tl.int64))
    differ = most > others  # else both may be infinite
    tl.store(confidence + row, tl.where(differ, most, 0.0) - tl.where(differ, others, 0.0))


def best_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [N, V] f32 -> ids [N] int64, confidence [N] f32."""
    assert logits.stride(1) == 1
    assert logits.dtype == torch.float32
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    confidence = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocab))
    warps = min(8, max(1, block // 256))
    _best_token[(rows,)](logits, ids, confidence, vocab, logits.stride(0), V=block, num_warps=warps)
    return ids, confidence
