"""The ops in plain torch: the fallback on every device, and the oracle of every other backend.

Row invariance in f32 on CPU needs one property of the BLAS behind torch: a matrix product with a multiple of
ROW_ALIGN rows accumulates every row in the same order, however many rows there are. `nextn.ops.probe`
measures this at start-up. Shapes without the property are computed with products of exactly ROW_ALIGN rows,
and the narrowest shapes by elementwise multiplication and a sum.

Shapes are those of `nextn.ops.base`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.ops.base import KV_BLOCK, NO_TOKEN, ROW_ALIGN, Addend, Columns, Mixture, Routing, Spans, Tables
from nextn.ops.best import best_token
from nextn.ops.fp8 import Weight, widened
from nextn.ops.fp8_rows import rounded
from nextn.ops.gather import Gathered, gathered
from nextn.ops.naive import naive_attention
from nextn.ops.philox import uniforms
from nextn.ops.probe import Mode, Shape
from nextn.ops.rotary import rotate

# Weight of a key relative to the best one, e**-64. Smaller ones change no sum; products with them may be
# denormal and slow.
LEAST_WEIGHT = 1.6e-28


class Runs(NamedTuple):
    """Rows in the order of their experts. Each expert's run is padded with row 0 to a multiple of ROW_ALIGN.

    used, sizes: the experts that have rows, and the length of each expert's run. rows: [P] int64, rows of the
    batch. place: [R, K] int64, index into `rows` of each choice; P: the expert is on another device.
    """

    used: list[int]
    sizes: list[int]
    rows: Tensor
    place: Tensor


class Reference:
    name = "reference"
    exact_columns = False  # the BLAS chooses its loops by the width of the result too

    naive_attention = staticmethod(naive_attention)
    best_token = staticmethod(best_token)
    fp8_rows = staticmethod(rounded)

    def __init__(self, modes: Mapping[Shape, Mode] | None = None) -> None:
        """modes: from `product_modes`. Shapes that are not in it are computed directly."""
        self.modes = {shape: mode for shape, mode in (modes or {}).items() if mode != "direct"}

    def embed(self, tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        return tables.embedding[tokens].float(), tables.cos[positions], tables.sin[positions]

    def embed_beside(
        self, tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
        norms: tuple[Tensor, Tensor], eps: float, embedding_first: bool, masks_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        embeds = tables.embedding[tokens]
        if masks_first:
            embeds = embeds.masked_fill((positions == 0)[:, None], 0)
        states = hidden if rows is None else hidden.index_select(0, rows)
        parts = self.rms_norm(embeds, norms[0], eps), self.rms_norm(states, norms[1], eps)
        both = torch.cat(parts if embedding_first else parts[::-1], dim=-1)
        return both, tables.cos[positions], tables.sin[positions]

    def linear(self, x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        return self._linear(x, widened(weight, x.dtype)).to(dtype or x.dtype)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        mode = self.modes.get((weight.shape[0], weight.shape[1]))
        if mode is None or (mode == "blocks" and x.shape[0] <= ROW_ALIGN):
            return F.linear(x, weight)
        if mode == "blocks":
            return torch.cat([F.linear(part, weight) for part in x.split(ROW_ALIGN)])
        return torch.cat([(part[:, None] * weight).sum(-1) for part in x.split(ROW_ALIGN)])

    def _linear_out(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out <- linear(x, weight), without a copy if the product is computed directly."""
        if (weight.shape[0], weight.shape[1]) in self.modes:
            out.copy_(self._linear(x, weight))
        else:
            torch.mm(x, weight.t(), out=out)

    def _bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """a [B, M, K] @ b [B, K, N], M a multiple of ROW_ALIGN. Its key in `modes` is (N, K)."""
        mode = self.modes.get((b.shape[2], b.shape[1]))
        if mode is None:
            return torch.bmm(a, b)
        parts = a.split(ROW_ALIGN, dim=1)
        if mode == "blocks":
            return torch.cat([torch.bmm(part, b) for part in parts], dim=1)
        columns = b.transpose(1, 2)[:, None]
        return torch.cat([(part[:, :, None] * columns).sum(-1) for part in parts], dim=1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps).to(weight.dtype)

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        for one in added:
            x = x + (self.combine(*one) if isinstance(one, Mixture) else one)
        return x, self.rms_norm(x, weight, eps)

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        nope = key_up.shape[1]
        latent = self.heads_matmul(q[..., :nope], key_up)
        return torch.cat((latent, rotate(q[..., nope:], cos, sin)), dim=-1) * scale

    def swiglu_mlp(self, x: Tensor, gate_up: Weight, down: Weight, *, inner: Columns | None = None) -> Tensor:
        gate_up, down = widened(gate_up, x.dtype), widened(down, x.dtype)
        return self._linear(_swiglu(self._linear(x, gate_up), inner), down).float()

    def write_latent(
        self,
        cache: Tensor,
        slots: Tensor,
        latent: Tensor,
        weight: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        rank = len(weight)
        key = rotate(latent[:, None, rank:], cos, sin)[:, 0]
        cache.index_copy_(0, slots, torch.cat((self.rms_norm(latent[:, :rank], weight, eps), key), dim=-1))

    def norm_latents(
        self,
        cache: Tensor,
        slots: Tensor,
        latent: Tensor,
        weight: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        query: Tensor,
        query_weight: Tensor,
    ) -> Tensor:
        self.write_latent(cache, slots, latent, weight, eps, cos, sin)
        return self.rms_norm(query, query_weight, eps)

    def write_kv(
        self,
        cache: Tensor,
        slots: Tensor,
        qkv: Tensor,
        bias: Tensor | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        scale: float,
    ) -> Tensor:
        groups, width, nope = cache.shape[1], cache.shape[2] // 2, cache.shape[2] // 2 - 2 * cos.shape[1]
        every = (qkv.float() if bias is None else qkv.float() + bias.float()).unflatten(1, (-1, width))
        query, key, value = every.tensor_split((-2 * groups, -groups), dim=1)

        def turned(x: Tensor, weight: Tensor | None) -> Tensor:
            if weight is not None:
                x = F.rms_norm(x, weight.shape, weight.float(), eps)
            return torch.cat((x[..., :nope], rotate(x[..., nope:], cos, sin)), dim=-1)

        cache.index_copy_(0, slots, torch.cat((value, turned(key, k_norm)), dim=-1).to(cache.dtype))
        return (turned(query, q_norm) * scale).to(qkv.dtype)

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        heads, width = q.shape[1:]
        queries = gathered(spans, heads)
        if not queries.groups:  # all rows are of long prompts and use naive attention
            return torch.zeros_like(q[..., :rank])
        outs = []
        for g in queries.groups:
            b, n, s = g.size
            keys = cache.index_select(0, g.slots).view(b, s, width)
            query = q.index_select(0, g.rows).view(b, n * heads, width)
            out = self._attend(query, keys, keys[..., :rank], g.hidden)
            outs.append(out.view(b * n, heads, rank))
        return _back(outs, queries).to(q.dtype)

    def gqa_attention(self, q: Tensor, cache: Tensor, spans: Spans) -> Tensor:
        caches, width = cache.shape[1], q.shape[2]
        heads = q.shape[1] // caches
        queries = gathered(spans, heads, caches=caches)
        outs = []
        for g in queries.groups:
            b, n, s = g.size
            entries = cache.index_select(0, g.slots).view(b, s, caches, 2 * width)
            entries = entries.transpose(1, 2).flatten(0, 1)
            query = q.index_select(0, g.rows).view(b, n, caches, heads, width)
            query = query.transpose(1, 2).reshape(b * caches, n * heads, width)
            hidden = g.hidden.repeat_interleave(caches, 0)
            out = self._attend(query, entries[..., width:], entries[..., :width], hidden)
            outs.append(out.view(b, caches, n, heads, width).transpose(1, 2).reshape(b * n, -1, width))
        return _back(outs, queries).to(q.dtype)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        """query [B, N * H, D], keys [B, S, D], values [B, S, V], hidden [B, N, 1, S] -> [B, N * H, V] f32."""
        b, s, _ = keys.shape
        scores = self._bmm(query, keys.transpose(1, 2)).float()
        scores.view(b, hidden.shape[1], -1, s).masked_fill_(hidden, float("-inf"))
        # The maximum does not depend on the order of keys. Sums do, so they are computed block by block.
        p = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        F.threshold(p, LEAST_WEIGHT, 0.0, inplace=True)
        blocks, rows = s // KV_BLOCK, p.shape[1]
        p = p.view(b, rows, blocks, KV_BLOCK).transpose(1, 2).flatten(0, 1)
        part = self._bmm(p.to(keys.dtype), values.unflatten(1, (blocks, KV_BLOCK)).flatten(0, 1))
        part, norm = part.view(b, blocks, rows, -1).float(), p.sum(-1).view(b, blocks, rows, 1)
        out, total = part[:, 0], norm[:, 0]
        for i in range(1, blocks):
            out, total = out + part[:, i], total + norm[:, i]
        return out / total

    def best_of_product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(x, weight, torch.float32)
        finite = logits.amax(dim=-1).abs() < math.inf  # False for NaN
        tokens, confidence = best_token(logits)
        return torch.where(finite, tokens, NO_TOKEN), confidence

    uniforms = staticmethod(uniforms)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._bmm(x.transpose(0, 1), weight).transpose(0, 1)

    def route(self, x: Tensor, router: Tensor, bias: Tensor, by: Routing) -> tuple[Tensor, Tensor]:
        logits = self.linear(x.float(), router)
        if by.softmax:
            scores = (logits - logits.amax(-1, keepdim=True)).exp_()
            scores = scores / scores.sum(-1, keepdim=True)
        else:  # torch.sigmoid's vector loop and its scalar tail differ in the last bit
            scores = logits.neg_().exp_().add_(1.0).reciprocal_()
        biased = scores + bias
        if by.top_groups < by.groups:
            grouped = biased.unflatten(-1, (by.groups, -1))
            worth = grouped.topk(1 if by.softmax else 2, dim=-1).values.sum(-1)
            best = worth.topk(by.top_groups, dim=-1).indices
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
            biased = grouped.masked_fill(closed[..., None], float("-inf")).flatten(-2)
        ids = biased.topk(by.top_k, dim=-1).indices
        weights = scores.gather(1, ids)
        if by.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * by.scale

    def dispatch(self, ids: Tensor, experts: int) -> Runs:
        flat = ids.flatten().cpu().numpy()
        here = np.flatnonzero(flat >= 0)
        order = here[np.argsort(flat[here], kind="stable")]
        counts = np.bincount(flat[here], minlength=experts)
        used = np.nonzero(counts)[0]
        padded = -(-counts[used] // ROW_ALIGN) * ROW_ALIGN
        starts = np.cumsum(padded) - padded
        begin = np.cumsum(counts[used]) - counts[used]
        source = np.zeros(int(padded.sum()), dtype=np.int64)
        place = np.full(flat.size, len(source), dtype=np.int64)
        place[order] = np.arange(len(order)) + np.repeat(starts - begin, counts[used])
        source[place[order]] = order // ids.shape[1]
        rows, places = (torch.from_numpy(a).to(ids.device) for a in (source, place))
        return Runs(used.tolist(), padded.tolist(), rows, places.view(ids.shape))

    def experts(
        self, x: Tensor, runs: Runs, gate_up: Weight, down: Weight, *, inner: Columns | None = None
    ) -> Tensor:
        gate_up, down = widened(gate_up, x.dtype), widened(down, x.dtype)
        gathered = x.index_select(0, runs.rows)
        # Only the two products are computed per expert; everything else once for all rows.
        hidden = gathered.new_empty(len(gathered), gate_up.shape[1])
        for e, x_e, h_e in zip(runs.used, gathered.split(runs.sizes), hidden.split(runs.sizes), strict=True):
            self._linear_out(x_e, gate_up[e], h_e)
        hidden = _swiglu(hidden, inner)
        outs = gathered.new_empty(len(gathered) + 1, down.shape[1])
        outs[-1] = 0  # for choices whose expert is on another device
        sizes = [*runs.sizes, 1]
        for e, h_e, o_e in zip(runs.used, hidden.split(runs.sizes), outs.split(sizes), strict=False):
            self._linear_out(h_e, down[e], o_e)
        return outs.index_select(0, runs.place.flatten()).view(*runs.place.shape, -1)

    def experts_with_shared(
        self,
        x: Tensor,
        runs: Runs,
        gate_up: Weight,
        down: Weight,
        shared_gate_up: Weight,
        shared_down: Weight,
    ) -> tuple[Tensor, Tensor]:
        return self.experts(x, runs, gate_up, down), self.swiglu_mlp(x, shared_gate_up, shared_down)

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        rows, top_k, _ = results.shape
        mixed = results[:, 0] * weights[:rows, 0, None]
        for k in range(1, top_k):
            mixed = mixed + results[:, k] * weights[:rows, k, None]
        return F.pad(mixed, (0, 0, 0, len(weights) - rows)).to(results.dtype).float()


def _back(outs: Sequence[Tensor], queries: Gathered) -> Tensor:
    """The results of a batch's groups, [B * Q, ...] each, in the order of the batch's rows."""
    flat = outs[0] if len(outs) == 1 else torch.cat(list(outs))
    return flat.index_select(0, queries.back)


def _swiglu(gate_up: Tensor, inner: Columns | None) -> Tensor:
    """gate_up [T, 2 * I], or only its columns `inner` -> silu(gate) * up [T, I]."""
    if inner is not None and inner.end - inner.begin < inner.n:
        # silu's vector loop and its scalar tail differ in the last bit, so each column keeps its place.
        both = gate_up.new_zeros(len(gate_up), 2, inner.n)
        both[:, :, inner.begin : inner.end] = gate_up.unflatten(1, (2, inner.end - inner.begin))
        gate_up = both.flatten(1)
    gate, up = gate_up.chunk(2, dim=-1)
    hidden = F.silu(gate).mul_(up)
    if inner is not None:
        inner.gather(hidden)
    return hidden
