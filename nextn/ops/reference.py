"""Plain torch: the fallback everywhere and the oracle of every other backend.

Row invariance in f32 on CPU rests on one property of the BLAS behind torch: a matrix product with a
multiple of ROW_ALIGN rows accumulates every row in the same order whatever their number. That is
measured at start-up, not believed (`nextn.ops.probe`); where it does not hold, `blocked` makes every
product out of products of exactly ROW_ALIGN rows.

Shapes are those of `nextn.ops.base`.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.ops.base import KV_BLOCK, ROW_ALIGN, Attention


class Reference:
    name = "reference"

    def __init__(self, blocked: bool = False) -> None:
        self.blocked = blocked

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self.blocked or x.shape[0] <= ROW_ALIGN:
            return F.linear(x, weight)
        return torch.cat([F.linear(part, weight) for part in x.split(ROW_ALIGN)])

    def _bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """a [B, M, K] @ b [B, K, N], M a multiple of ROW_ALIGN."""
        if not self.blocked:
            return torch.bmm(a, b)
        parts = [torch.cat([m @ w for m in x.split(ROW_ALIGN)]) for x, w in zip(a, b, strict=True)]
        return torch.stack(parts)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = pairs * torch.complex(cos, sin)[:, None]
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)

    def swiglu_mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = self.linear(x, gate_up).chunk(2, dim=-1)
        return self.linear(F.silu(gate) * up, down)

    def write_cache(self, cache: Tensor, slots: Tensor, entries: Tensor) -> None:
        cache.index_copy_(0, slots, entries)

    def mla_attention(self, q: Tensor, cache: Tensor, plan: Attention, rank: int) -> Tensor:
        heads, width = q.shape[1:]
        outs = []
        for g in plan.groups:
            b, n, s = g.size
            keys = cache.index_select(0, g.slots).view(b, s, width)
            query = q.index_select(0, g.rows).view(b, n * heads, width)
            scores = self._bmm(query, keys.transpose(1, 2)).float().view(b, n, heads, s)
            scores.masked_fill_(g.hidden, float("-inf"))
            # The maximum does not depend on the order; the sums below do, so they go block by block.
            p = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            blocks = s // KV_BLOCK
            p = p.view(b, n * heads, blocks, KV_BLOCK).transpose(1, 2).flatten(0, 1)
            values = keys.view(b * blocks, KV_BLOCK, width)[..., :rank]
            part = self._bmm(p.to(keys.dtype), values).view(b, blocks, n * heads, rank).float()
            norm = p.sum(-1).view(b, blocks, n * heads, 1)
            out, total = part[:, 0], norm[:, 0]
            for i in range(1, blocks):
                out, total = out + part[:, i], total + norm[:, i]
            outs.append((out / total).view(b * n, heads, rank))
        flat = outs[0] if len(outs) == 1 else torch.cat(outs)
        return flat.index_select(0, plan.back).to(q.dtype)

    def naive_attention(
        self, q: Tensor, cache: Tensor, plan: Attention, rank: int, key_up: Tensor, value_up: Tensor
    ) -> Tensor:
        heads = q.shape[1]
        outs = []
        for g in plan.groups:
            b, n, s = g.size
            entries = cache.index_select(0, g.slots).view(b, 1, s, -1)
            latent, rope = entries[..., :rank], entries[..., rank:]
            keys = torch.cat((latent @ key_up.transpose(1, 2), rope.expand(-1, heads, -1, -1)), dim=-1)
            query = q.index_select(0, g.rows).view(b, n, heads, -1).transpose(1, 2)
            scores = (query @ keys.transpose(2, 3)).float().masked_fill_(g.hidden.transpose(1, 2), -torch.inf)
            mixed = scores.softmax(-1).to(q.dtype) @ (latent @ value_up)
            outs.append(mixed.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs).index_select(0, plan.back)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._bmm(x.transpose(0, 1), weight).transpose(0, 1)

    def route(
        self,
        x: Tensor,
        gate: Tensor,
        bias: Tensor,
        groups: int,
        top_groups: int,
        top_k: int,
        normalize: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        scores = self.linear(x.float(), gate).sigmoid()
        biased = scores + bias
        if top_groups < groups:
            grouped = biased.unflatten(-1, (groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(top_groups, dim=-1).indices
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
            biased = grouped.masked_fill(closed[..., None], float("-inf")).flatten(-2)
        ids = biased.topk(top_k, dim=-1).indices
        weights = scores.gather(1, ids)
        if normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * scale

    def experts(
        self, x: Tensor, rows: int, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        top_k, width = ids.shape[1], down.shape[2]
        flat = ids[:rows].flatten().cpu().numpy()
        order = np.argsort(flat, kind="stable")
        counts = np.bincount(flat, minlength=gate_up.shape[0])
        used = np.nonzero(counts)[0]
        padded = -(-counts[used] // ROW_ALIGN) * ROW_ALIGN
        starts = np.cumsum(padded) - padded
        # Rows in expert order, every expert's run filled up to a multiple of ROW_ALIGN with row 0.
        place = np.empty(flat.size, dtype=np.int64)
        begin = np.cumsum(counts[used]) - counts[used]
        place[order] = np.arange(flat.size) + np.repeat(starts - begin, counts[used])
        source = np.zeros(int(padded.sum()), dtype=np.int64)
        source[place] = np.arange(flat.size) // top_k
        gathered = x.index_select(0, torch.from_numpy(source).to(x.device))
        outs = torch.empty_like(gathered)
        for e, start, n in zip(used.tolist(), starts.tolist(), padded.tolist(), strict=True):
            h = self.linear(gathered[start : start + n], gate_up[e])
            h = F.silu(h[:, :width]).mul_(h[:, width:])
            outs[start : start + n] = self.linear(h, down[e])
        mine = outs.index_select(0, torch.from_numpy(place).to(x.device)).view(rows, top_k, -1)
        mixed = mine[:, 0] * weights[:rows, 0, None]
        for k in range(1, top_k):
            mixed = mixed + mine[:, k] * weights[:rows, k, None]
        return F.pad(mixed.to(x.dtype), (0, 0, 0, x.shape[0] - rows))
