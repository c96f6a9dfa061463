"""Multi-head latent attention (arXiv 2405.04434) over the paged latent cache.

Shapes: T rows, C hidden, H heads, R kv_lora_rank, P rope width, N nope width, V value width.
The cache entry of a token is [latent after its norm (R) | rotated key (P)]. The key half of kv_b_proj is
folded into the query, its value half into the output (the absorbed form). All queries (prompt, decode,
verify) use this form. So the bits of a token do not depend on which of these steps computed it. The
naive form, which expands keys and values, takes fewer operations for long prompts;
--prefill-attention naive uses it for them. With several ranks, each has some of the heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.rotary import softmax_scale
from nextn.layers.sharing import Sharing
from nextn.ops.fp8 import Weight
from nextn.ops.rotary import rotate

# For the two norms inside MLA. DeepSeek's code and transformers use it for every value of rms_norm_eps.
LATENT_NORM_EPS = 1e-6


class MLA:
    def __init__(self, sharing: Sharing) -> None:
        self.cfg, self.ops, empty, matrix = sharing.cfg, sharing.ops, sharing.empty, sharing.matrix
        cfg, self.heads, self.hidden = sharing.cfg, sharing.heads(), sharing.hidden()
        self.values = self.heads.times(cfg.v_head_dim)
        h, nope, rope = len(self.heads.own), cfg.qk_nope_head_dim, cfg.qk_rope_head_dim
        rank, value, hidden = cfg.kv_lora_rank, cfg.v_head_dim, cfg.hidden_size
        self.q_in = cfg.q_lora_rank or h * (nope + rope)
        self.scale = softmax_scale(cfg)
        self.down = matrix(self.q_in + rank + rope, hidden)  # q_down (or q_proj) over kv_down
        if cfg.q_lora_rank:
            self.q_norm = empty(cfg.q_lora_rank)
            self.q_up = matrix(h * (nope + rope), cfg.q_lora_rank)
        self.kv_norm = empty(rank)
        self.kv_up = empty(h, nope + value, rank)  # never in FP8 blocks: one half is read along its rows
        self.key_up = self.kv_up[:, :nope]  # [H, N, R]
        self.value_up = self.kv_up[:, nope:].transpose(1, 2)  # [H, R, V]
        self.out = matrix(len(self.hidden.own), self.values.n)

    def targets(self, prefix: str) -> dict[str, Weight]:
        """Checkpoint name -> the weight that this tensor fills. prefix: the decoder layer's name."""
        names = self.cfg.names
        found: dict[str, Weight] = {
            names.kv_down: self.down[self.q_in :],
            names.kv_norm: self.kv_norm,
            names.kv_up: self.kv_up.view(-1, self.cfg.kv_lora_rank),
            names.out: self.out,
        }
        if self.cfg.q_lora_rank:
            found |= {names.q_down: self.down[: self.q_in], names.q_norm: self.q_norm, names.q_up: self.q_up}
        else:
            found[names.q_proj] = self.down[: self.q_in]
        return {prefix + name: tensor for name, tensor in found.items()}

    def forward(self, x: Tensor, batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
        """x [T, C], cos and sin [T, P / 2], cache [slots, R + P], this layer's -> [T, C] f32."""
        cfg, ops, rank = self.cfg, self.ops, self.cfg.kv_lora_rank
        q, latent = ops.linear(x, self.down).split((self.q_in, rank + cfg.qk_rope_head_dim), dim=-1)
        entries = cache, batch.slots, latent, self.kv_norm, LATENT_NORM_EPS, cos, sin
        if cfg.q_lora_rank:
            q = ops.linear(ops.norm_latents(*entries, q, self.q_norm), self.q_up)
        else:
            ops.write_latent(*entries)
        q = q.unflatten(-1, (len(self.heads.own), -1))
        query, spans = ops.absorb(q, self.key_up, cos, sin, self.scale), batch.attention
        mixed = ops.heads_matmul(ops.mla_attention(query, cache, spans, rank), self.value_up)
        if spans.prompts is not None:
            q_nope, q_rope = q.split((cfg.qk_nope_head_dim, cfg.qk_rope_head_dim), dim=-1)
            query = torch.cat((q_nope, rotate(q_rope, cos, sin)), dim=-1) * self.scale
            naive = ops.naive_attention(query, cache, spans, rank, self.key_up, self.value_up)
            mixed = torch.where(spans.prompts[:, None, None], naive, mixed)
        return self.hidden.whole(ops.linear(self.values.whole(mixed.flatten(1)), self.out, torch.float32))
