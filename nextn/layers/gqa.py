"""Grouped-query attention (arXiv 2305.13245) over the paged cache of keys and values.

Shapes: T rows, C hidden, H heads, G key-value heads, D width of a head, P rotated elements of a head.
The cache entry of a token is [value (D) | rotated key (D)] for each key-value head. With several ranks, each
has some of the heads. But every rank computes all keys and values, so all ranks have the same cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.rotary import softmax_scale
from nextn.layers.sharing import Sharing
from nextn.ops.fp8 import Weight


class GQA:
    def __init__(self, sharing: Sharing) -> None:
        cfg, self.ops, empty, matrix = sharing.cfg, sharing.ops, sharing.empty, sharing.matrix
        assert cfg.gqa is not None
        self.cfg, self.gqa, width = cfg, cfg.gqa, cfg.gqa.head_dim
        self.heads, self.hidden = sharing.heads(), sharing.hidden()
        self.values = self.heads.times(width)
        self.scale = softmax_scale(cfg)
        each = cfg.num_attention_heads // self.gqa.num_key_value_heads
        own = self.heads.own
        self.seen = slice(own.start // each, (own.stop - 1) // each + 1)  # key-value heads of the own heads
        keys = self.gqa.num_key_value_heads * width
        self.ends = (len(own) * width, len(own) * width + keys)  # of the queries, of the keys; values follow
        self.qkv = matrix(self.ends[1] + keys, cfg.hidden_size)
        self.bias = empty(len(self.qkv)) if self.gqa.qkv_bias else None
        self.q_norm, self.k_norm = (empty(width) if self.gqa.qk_norm else None for _ in range(2))
        self.out = matrix(len(self.hidden.own), self.values.n)
        self.out_bias = empty(len(self.out)) if self.gqa.out_bias else None

    def targets(self, prefix: str) -> dict[str, Weight]:
        """Checkpoint name -> the weight that this tensor fills, with rows in the order of
        `nextn.layers.head_rows`. prefix: the decoder layer's name."""
        names = self.cfg.names
        first, second = self.ends
        found: dict[str, Weight] = {
            names.q_proj: self.qkv[:first],
            names.k_proj: self.qkv[first:second],
            names.v_proj: self.qkv[second:],
            names.out: self.out,
        }
        if self.bias is not None:
            q, k, v = self.bias.tensor_split(self.ends)
            found |= {names.q_bias: q, names.k_bias: k, names.v_bias: v}
        if self.q_norm is not None and self.k_norm is not None:
            found |= {names.q_norm: self.q_norm, names.k_norm: self.k_norm}
        if self.out_bias is not None:
            found[names.out_bias] = self.out_bias
        return {prefix + name: tensor for name, tensor in found.items()}

    def forward(self, x: Tensor, batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
        """x [T, C], cos and sin [T, P / 2], cache [slots, G, 2 * D] of this layer -> [T, C] f32."""
        ops = self.ops
        query = ops.write_kv(
            cache, batch.slots, ops.linear(x, self.qkv), self.bias, self.q_norm, self.k_norm,
            self.cfg.rms_norm_eps, cos, sin, self.scale,
        )  # fmt: skip
        mixed = ops.gqa_attention(query, cache[:, self.seen], batch.attention)
        out = ops.linear(self.values.whole(mixed.flatten(1)), self.out, torch.float32)
        return self.hidden.whole(out if self.out_bias is None else out + self.out_bias)
