"""Cross entropy of the head against true tokens, computed without all logits in memory at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model import Linear
from torch import Tensor


class _HeadLoss(torch.autograd.Function):
    """Cross entropy of a linear head in chunks of rows. The forward pass also computes the gradients, so that
    the [T, V] logits are never in memory at once.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, labels: Tensor, row_weight: Tensor):  # type: ignore[no-untyped-def]
        w = weight.to(torch.bfloat16)
        dx = torch.empty_like(x)
        dw = torch.zeros_like(weight)
        losses = torch.empty(x.shape[0])
        for s in range(0, x.shape[0], 1024):
            rows = slice(s, s + 1024)
            logits = F.linear(x[rows], w).float()
            lse = torch.logsumexp(logits, -1)
            lab = labels[rows, None]
            losses[rows] = lse - logits.gather(1, lab)[:, 0]
            grad = logits.sub_(lse[:, None]).exp_()
            grad.scatter_add_(1, lab, torch.full_like(lab, -1, dtype=torch.float32))
            grad = grad.mul_(row_weight[rows, None]).to(torch.bfloat16)
            dx[rows] = grad @ w
            dw += grad.t() @ x[rows]
        ctx.save_for_backward(dx, dw)
        return (losses * row_weight).sum()

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        dx, dw = ctx.saved_tensors
        return dx * grad, dw * grad, None, None


def head_loss(x: Tensor, head: Linear, labels: Tensor, row_weight: Tensor) -> Tensor:
    """Sum over rows of row_weight * cross entropy; x [T, C] bf16, labels [T], row_weight [T] f32."""
    return _HeadLoss.apply(x, head.weight, labels, row_weight)  # type: ignore[no-any-return]
