"""`nextn.ops.base.Ops` in the kernels of this package. See `nextn.ops.triton` for which is where."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.base import PagedAttention
from nextn.ops.naive import naive_attention
from nextn.ops.triton import attention, experts, linear, route, rows


class TritonOps:
    name = "triton"

    naive_attention = staticmethod(naive_attention)

    def linear(self, x: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return linear.linear(x, weight, dtype or x.dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rows.rms_norm(x, weight, eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rows.rotate(x, cos, sin)

    def swiglu_mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return linear.linear(linear.gate_up(x, gate_up), down, x.dtype)

    def write_cache(self, cache: Tensor, slots: Tensor, entries: Tensor) -> None:
        rows.write_cache(cache, slots, entries)

    def mla_attention(self, q: Tensor, cache: Tensor, plan: PagedAttention, rank: int) -> Tensor:
        return attention.mla_attention(q, cache, plan, rank)

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
        logits = linear.linear(x, gate, torch.float32)
        return route.route(logits, bias, groups, top_groups, top_k, normalize, scale)

    def experts(
        self, x: Tensor, rows: int, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        return experts.experts(x, rows, ids, weights, gate_up, down)
