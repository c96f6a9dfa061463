"""Tunes the MTP module to predict the target's own choices (the trunk is frozen).

A draft is accepted if it equals the target's choice on the target's own text. So the module is trained on
rollouts of the target from training prompts, with the target's distribution as the label at every depth of
the unrolled module. The label of a row is the same at every depth: the target's distribution after the true
tokens up to the predicted one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model import Linear, Tiny
from rollouts import Rollouts
from torch import Tensor
from train import MTP_DEPTH

DEPTH_WEIGHTS = (1.0, 0.8, 0.6)
PROMPT_WEIGHT = 0.3  # weight of rows on real text; rows on the target's own text have weight 1
TAU_GREEDY, TAU_SAMPLED = 0.4, 0.7


class _HeadMatch(torch.autograd.Function):
    """Cross entropy of softmax(head(x_d) / tau) against softmax(head(target) / tau), in chunks of rows.

    xs: [T, C] for each depth; target [T, C]; row_weights [depths, T]; tau [T]. The head gets no gradient.
    """

    @staticmethod
    def forward(ctx, weight: Tensor, target: Tensor, tau: Tensor, row_weights: Tensor, *xs: Tensor):  # type: ignore[no-untyped-def]
        w = weight.to(torch.bfloat16)
        grads = [torch.zeros_like(x) for x in xs]
        sums = torch.zeros(len(xs))
        for s in range(0, target.shape[0], 512):
            rows = slice(s, s + 512)
            t = tau[rows, None]
            label = (F.linear(target[rows], w).float() / t).softmax(-1)
            for d, x in enumerate(xs):
                logp = (F.linear(x[rows], w).float() / t).log_softmax(-1)
                rw = row_weights[d, rows]
                sums[d] -= ((label * logp).sum(-1) * rw).sum()
                grads[d][rows] = (logp.exp_().sub_(label) * (rw[:, None] / t)).to(torch.bfloat16) @ w
        ctx.save_for_backward(*grads)
        return sums

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        grads = ctx.saved_tensors
        return None, None, None, None, *(g * grad[d] for d, g in enumerate(grads))


def mtp_loss(model: Tiny, batch: Rollouts) -> Tensor:
    """The weighted mean cross entropy at tau over valid rows, by depth: [MTP_DEPTH]."""
    longest = int(batch.ends.max())
    tokens, hidden = batch.tokens[:, :longest].long(), batch.hidden[:, :longest]
    with torch.no_grad():
        embeds = model.embed_tokens(tokens)
    outs = model.drafts(hidden, embeds, MTP_DEPTH)
    at = torch.arange(longest - 2)  # row p predicts token p + 2
    inside = at[None] + 2 < batch.ends[:, None]
    own = inside & (at[None] + 2 >= batch.starts[:, None])
    weight = PROMPT_WEIGHT * inside.float() + (1 - PROMPT_WEIGHT) * own.float()
    weight = weight / weight.sum()
    weights = torch.stack([weight * (at >= d) for d in range(MTP_DEPTH)]).flatten(1)
    tau = torch.where(batch.greedy, TAU_GREEDY, TAU_SAMPLED)[:, None].expand(-1, longest - 2)
    keep = weight.flatten() > 0
    flat = [x[:, : longest - 2].flatten(0, 1)[keep] for x in outs]
    target = hidden[:, 1 : longest - 1].flatten(0, 1)[keep]
    head: Linear = model.lm_head
    return _HeadMatch.apply(head.weight, target, tau.flatten()[keep], weights[:, keep], *flat)  # type: ignore[no-any-return]


def optimizers(model: Tiny, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the module's matrices, and AdamW for its router and norms; without the trunk."""
    named = list(model.nextn.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "gate.weight" not in n]
    vectors = [p for n, p in named if p.ndim != 2 or "gate.weight" in n]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(vectors, lr=adam_lr, betas=(0.9, 0.97), weight_decay=0.0, fused=True),
    ]
