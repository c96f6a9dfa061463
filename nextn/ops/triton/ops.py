"""`nextn.ops.base.Ops` with the kernels of this package. The docstring of `nextn.ops.triton` lists its
files."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.ops.base import Addend, Columns
from nextn.ops.fp8 import Weight
from nextn.ops.naive import naive_attention
from nextn.ops.triton import attention, best, fp8_rows, heads, noise, rows
from nextn.ops.triton import embed as begins
from nextn.ops.triton import experts as moe
from nextn.ops.triton import linear as products
from nextn.ops.triton import route as router
from nextn.ops.triton.product import ROWS


class TritonOps:
    name = "triton"
    exact_columns = True  # see product.py

    embed = staticmethod(begins.embed)
    embed_beside = staticmethod(begins.embed_beside)
    rms_norm = staticmethod(rows.rms_norm)
    write_latent = staticmethod(rows.write_latent)
    norm_latents = staticmethod(rows.norm_latents)
    absorb = staticmethod(products.absorb)
    mla_attention = staticmethod(attention.mla_attention)
    naive_attention = staticmethod(naive_attention)
    write_kv = staticmethod(heads.write_kv)
    gqa_attention = staticmethod(attention.gqa_attention)
    route = staticmethod(router.route)
    fp8_rows = staticmethod(fp8_rows.rounded)
    dispatch = staticmethod(moe.dispatch)
    experts = staticmethod(moe.experts)
    combine = staticmethod(moe.combine)
    best_token = staticmethod(best.best_token)
    best_of_product = staticmethod(best.best_of_product)
    uniforms = staticmethod(noise.uniforms)

    def linear(self, x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        return products.linear(x, weight, dtype or x.dtype)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return products.heads_matmul(x, weight, x.dtype)

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return x, rows.add_norm(x, added, weight, eps)

    def swiglu_mlp(self, x: Tensor, gate_up: Weight, down: Weight, *, inner: Columns | None = None) -> Tensor:
        middle = products.gate_up(x, gate_up)
        return self.linear(middle if inner is None else inner.whole(middle), down, torch.float32)

    def experts_with_shared(
        self, x: Tensor, runs: moe.Tiles, gate_up: Weight, down: Weight, shared_gate_up: Weight,
        shared_down: Weight,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        # With many rows, the shared expert uses tiles with more rows than a routed expert, which gets few.
        if len(x) > 4 * ROWS or shared_gate_up.shape != gate_up.shape[1:]:
            return moe.experts(x, runs, gate_up, down), self.swiglu_mlp(x, shared_gate_up, shared_down)
        return moe.experts_with_shared(x, runs, gate_up, down, shared_gate_up, shared_down)
