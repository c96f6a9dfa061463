"""`nextn.ops.base.Ops.best_token` in plain torch."""

from __future__ import annotations

from torch import Tensor


def best_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    ids = logits.argmax(dim=-1, keepdim=True)
    best = logits.gather(1, ids)
    # torch.topk is not used: it does not define the order of equal logits.
    second = logits.scatter_(1, ids, float("-inf")).amax(dim=-1, keepdim=True)
    return ids[:, 0], (best - second).where(best > second, 0.0)[:, 0]
