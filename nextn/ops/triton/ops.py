"""`nextn.ops.base.Ops` in the kernels of this package. See `nextn.ops.triton` for which is where."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.ops.base import Addend, Columns, Spans, Tables
from nextn.ops.fp8 import Weight
from nextn.ops.naive import naive_attention
from nextn.ops.triton import attention, best, embed, fp8_rows, heads, linear, noise, route, rows
from nextn.ops.triton import experts as moe
from nextn.ops.triton.product import ROWS


class TritonOps:
    name = "triton"
    exact_columns = True  # see product.py

    naive_attention = staticmethod(naive_attention)

    def embed(self, tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        return embed.embed(tokens, positions, tables)

    def embed_beside(
        self, tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
        norms: tuple[Tensor, Tensor], eps: float, embedding_first: bool, masks_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return embed.embed_beside(
            tokens, positions, tables, hidden, rows, norms, eps, embedding_first, masks_first
        )

    def linear(self, x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        return linear.linear(x, weight, dtype or x.dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rows.rms_norm(x, weight, eps)

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return x, rows.add_norm(x, added, weight, eps)

    def swiglu_mlp(self, x: Tensor, gate_up: Weight, down: Weight, *, inner: Columns | None = None) -> Tensor:
        middle = linear.gate_up(x, gate_up)
        return self.linear(middle if inner is None else inner.whole(middle), down, torch.float32)

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
        rows.write_latent(cache, slots, latent, weight, eps, cos, sin)

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
        return rows.norm_latents(cache, slots, latent, weight, eps, cos, sin, query, query_weight)

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        return linear.absorb(q, key_up, cos, sin, scale)

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        return attention.mla_attention(q, cache, spans, rank)

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
        return heads.write_kv(cache, slots, qkv, bias, q_norm, k_norm, eps, cos, sin, scale)

    def gqa_attention(self, q: Tensor, cache: Tensor, spans: Spans) -> Tensor:
        return attention.gqa_attention(q, cache, spans)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear.heads_matmul(x, weight, x.dtype)

    def route(
        self,
        x: Tensor,
        router: Tensor,
        bias: Tensor,
        groups: int,
        top_groups: int,
        top_k: int,
        normalize: bool,
        scale: float,
        softmax: bool = False,
    ) -> tuple[Tensor, Tensor]:
        return route.route(x, router, bias, groups, top_groups, top_k, normalize, scale, softmax)

    def fp8_rows(self, x: Tensor) -> Tensor:
        return fp8_rows.rounded(x)

    def dispatch(self, ids: Tensor, experts: int) -> moe.Tiles:
        return moe.dispatch(ids, experts)

    def experts(
        self, x: Tensor, runs: moe.Tiles, gate_up: Weight, down: Weight, *, inner: Columns | None = None
    ) -> Tensor:
        return moe.experts(x, runs, gate_up, down, inner=inner)

    def experts_with_shared(
        self,
        x: Tensor,
        runs: moe.Tiles,
        gate_up: Weight,
        down: Weight,
        shared_gate_up: Weight,
        shared_down: Weight,
    ) -> tuple[Tensor, Tensor]:
        # Many rows go through a shared expert in higher tiles than the few that each routed expert gets.
        if len(x) > 4 * ROWS or shared_gate_up.shape != gate_up.shape[1:]:
            return moe.experts(x, runs, gate_up, down), self.swiglu_mlp(x, shared_gate_up, shared_down)
        return moe.experts_with_shared(x, runs, gate_up, down, shared_gate_up, shared_down)

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        return moe.combine(results, weights)

    def best_token(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return best.best_token(logits)

    def best_of_product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return best.best_of_product(x, weight)

    def uniforms(
        self, seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int
    ) -> Tensor:
        return noise.uniforms(seed_low, seed_high, stream, position, count)
