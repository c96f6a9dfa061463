"""`nextn.ops.base.Ops` in the kernels of this package. See `nextn.ops.triton` for which is where."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.base import Spans
from nextn.ops.naive import naive_attention
from nextn.ops.triton import attention, best, experts, linear, route, rows


class TritonOps:
    name = "triton"

    naive_attention = staticmethod(naive_attention)

    def linear(
        self, x: Tensor, weight: Tensor, dtype: torch.dtype | None = None, onto: Tensor | None = None
    ) -> Tensor:
        return linear.linear(x, weight, onto.dtype if onto is not None else dtype or x.dtype, onto)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rows.rms_norm(x, weight, eps)

    def swiglu_mlp(self, x: Tensor, gate_up: Tensor, down: Tensor, onto: Tensor | None = None) -> Tensor:
        return self.linear(linear.gate_up(x, gate_up), down, onto=onto)

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

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        return linear.absorb(q, key_up, cos, sin, scale)

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        return attention.mla_attention(q, cache, spans, rank)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear.heads_matmul(x, weight, x.dtype)

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
        return route.route(x, gate, bias, groups, top_groups, top_k, normalize, scale)

    def experts(
        self,
        x: Tensor,
        rows: int,
        ids: Tensor,
        weights: Tensor,
        gate_up: Tensor,
        down: Tensor,
        onto: Tensor | None = None,
    ) -> Tensor:
        return experts.experts(x, rows, ids, weights, gate_up, down, onto)

    def best_token(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return best.best_token(logits)
