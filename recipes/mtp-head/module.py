"""The NextN module for training. Its differentiable arithmetic shares no code with the engine, so that a
trained folder is also a test of the engine.

Shapes: B sequences, L positions, C hidden size, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nextn.families.config import GqaAttention, ModelConfig
from nextn.layers.rotary import rotary_tables, softmax_scale


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(n_in: int, n_out: int, bias: bool = False) -> nn.Linear:
    made = nn.Linear(n_in, n_out, bias=bias)
    nn.init.normal_(made.weight, std=n_in**-0.5)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """MLA's rotary embedding: it rotates adjacent pairs. x [B, L, H, D], cos and sin [L, D / 2]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[:, None], sin[:, None]
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GQA's rotary embedding: it rotates element i with i + D / 2, in the first D = 2 * cos.shape[1]
    elements."""
    half = cos.shape[1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1)


class Latent(nn.Module):
    """MLA in its naive form: keys and values are expanded from the latent."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg, h, n = cfg, cfg.num_attention_heads, cfg.names
        nope, rope, value = cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim
        self.scale = softmax_scale(cfg)
        if cfg.q_lora_rank:
            self.q_down = linear(cfg.hidden_size, cfg.q_lora_rank)
            self.q_norm = RMSNorm(cfg.q_lora_rank, 1e-6)
            self.q_up = linear(cfg.q_lora_rank, h * (nope + rope))
            self.named = {
                n.q_down: self.q_down.weight,
                n.q_norm: self.q_norm.weight,
                n.q_up: self.q_up.weight,
            }
        else:
            self.q_proj = linear(cfg.hidden_size, h * (nope + rope))
            self.named = {n.q_proj: self.q_proj.weight}
        self.kv_down = linear(cfg.hidden_size, cfg.kv_lora_rank + rope)
        self.kv_norm = RMSNorm(cfg.kv_lora_rank, 1e-6)
        self.kv_up = linear(cfg.kv_lora_rank, h * (nope + value))
        self.out = linear(h * value, cfg.hidden_size)
        self.named |= {
            n.kv_down: self.kv_down.weight, n.kv_norm: self.kv_norm.weight, n.kv_up: self.kv_up.weight,
            n.out: self.out.weight,
        }  # fmt: skip

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, C] -> [B, L, H, D]."""
        q = self.q_up(self.q_norm(self.q_down(x))) if self.cfg.q_lora_rank else self.q_proj(x)
        q = q.unflatten(-1, (self.cfg.num_attention_heads, -1))
        nope, rope = q.split((self.cfg.qk_nope_head_dim, self.cfg.qk_rope_head_dim), dim=-1)
        return torch.cat((nope, rotate_pairs(rope, cos, sin)), dim=-1)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, L, C] -> keys [B, L, H, D], values [B, L, H, V]."""
        cfg = self.cfg
        latent, rope = self.kv_down(x).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (cfg.num_attention_heads, -1))
        nope, value = kv.split((cfg.qk_nope_head_dim, cfg.v_head_dim), dim=-1)
        rope = rotate_pairs(rope[:, :, None], cos, sin).expand(-1, -1, cfg.num_attention_heads, -1)
        return torch.cat((nope, rope), dim=-1), value


class Grouped(nn.Module):
    """GQA: queries share the keys and values of their group."""

    def __init__(self, cfg: ModelConfig, gqa: GqaAttention) -> None:
        super().__init__()
        self.cfg, self.gqa, h, n = cfg, gqa, cfg.num_attention_heads, cfg.names
        width, keys, bias = gqa.head_dim, gqa.num_key_value_heads * gqa.head_dim, gqa.qkv_bias
        self.scale = softmax_scale(cfg)
        self.q = linear(cfg.hidden_size, h * width, bias)
        self.k, self.v = linear(cfg.hidden_size, keys, bias), linear(cfg.hidden_size, keys, bias)
        self.out = linear(h * width, cfg.hidden_size, gqa.out_bias)
        self.named = {
            n.q_proj: self.q.weight, n.k_proj: self.k.weight, n.v_proj: self.v.weight, n.out: self.out.weight
        }  # fmt: skip
        if bias:
            self.named |= {n.q_bias: self.q.bias, n.k_bias: self.k.bias, n.v_bias: self.v.bias}
        if gqa.out_bias:
            self.named[n.out_bias] = self.out.bias
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if gqa.qk_norm:
            q_norm, k_norm = RMSNorm(width, cfg.rms_norm_eps), RMSNorm(width, cfg.rms_norm_eps)
            self.q_norm, self.k_norm = q_norm, k_norm
            self.named |= {n.q_norm: q_norm.weight, n.k_norm: k_norm.weight}

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, C] -> [B, L, H, D]."""
        return rotate_halves(self.q_norm(self.q(x).unflatten(-1, (-1, self.gqa.head_dim))), cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, L, C] -> keys and values [B, L, H, D], repeated for the heads of a group."""
        each = self.cfg.num_attention_heads // self.gqa.num_key_value_heads
        k = rotate_halves(self.k_norm(self.k(x).unflatten(-1, (-1, self.gqa.head_dim))), cos, sin)
        v = self.v(x).unflatten(-1, (-1, self.gqa.head_dim))
        return k.repeat_interleave(each, 2), v.repeat_interleave(each, 2)


class SwiGLU(nn.Module):
    """A SwiGLU block. prefix: the part of its tensors' names after the layer's prefix."""

    def __init__(self, cfg: ModelConfig, prefix: str, inner: int) -> None:
        super().__init__()
        self.gate, self.up = linear(cfg.hidden_size, inner), linear(cfg.hidden_size, inner)
        self.down, n = linear(inner, cfg.hidden_size), cfg.names
        self.named = {
            prefix + n.gate: self.gate.weight,
            prefix + n.up: self.up.weight,
            prefix + n.down: self.down.weight,
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """DeepSeek-V3's experts: sigmoid scores, groups, and a correction bias that is copied from the base and
    not trained."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg, n = cfg, cfg.names
        self.router = nn.Parameter(torch.randn(cfg.n_routed_experts, cfg.hidden_size) * cfg.hidden_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(cfg.n_routed_experts), requires_grad=False)
        self.experts = nn.ModuleList(
            SwiGLU(cfg, n.expert_at(e), cfg.moe_intermediate_size) for e in range(cfg.n_routed_experts)
        )
        self.named: dict[str, Tensor] = {n.router: self.router, n.router_bias: self.bias}
        for expert in self.experts:
            self.named |= expert.named
        self.shared = None
        if cfg.n_shared_experts:
            self.shared = SwiGLU(cfg, n.shared_experts, cfg.moe_intermediate_size * cfg.n_shared_experts)
            self.named |= self.shared.named

    def forward(self, x: Tensor) -> Tensor:
        shape, x, cfg = x.shape, x.flatten(0, -2), self.cfg
        scores = torch.sigmoid(F.linear(x, self.router))
        with torch.no_grad():
            biased = (scores + self.bias).unflatten(-1, (cfg.n_group, -1))
            best = biased.topk(2, dim=-1).values.sum(-1).topk(cfg.topk_group, dim=-1).indices
            keep = torch.zeros_like(biased[..., 0]).scatter_(1, best, 1.0)
            ids = biased.masked_fill(keep[..., None] == 0, float("-inf")).flatten(1)
            ids = ids.topk(cfg.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, ids)
        if cfg.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * cfg.routed_scaling_factor
        out = torch.zeros_like(x) if self.shared is None else self.shared(x)
        for e, expert in enumerate(self.experts):
            rows, slot = (ids == e).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out.view(shape)


class NextN(nn.Module):
    """The NextN module. `named`: its tensors by their names in a checkpoint, without the module's prefix."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg, names, spec, eps, c = cfg, cfg.names, cfg.mtp, cfg.rms_norm_eps, cfg.hidden_size
        self.embedding_norm, self.hidden_norm, self.output_norm = (
            RMSNorm(c, eps),
            RMSNorm(c, eps),
            RMSNorm(c, eps),
        )
        self.projection = linear(2 * c, c)
        self.attention_norm, self.mlp_norm = RMSNorm(c, eps), RMSNorm(c, eps)
        self.attention = Latent(cfg) if cfg.gqa is None else Grouped(cfg, cfg.gqa)
        layer = cfg.num_hidden_layers
        self.mlp: nn.Module = (
            Experts(cfg) if cfg.is_moe(layer) else SwiGLU(cfg, names.mlp, cfg.intermediate_size)
        )
        self.named: Mapping[str, Tensor] = {
            spec.embedding_norm: self.embedding_norm.weight, spec.hidden_norm: self.hidden_norm.weight,
            spec.projection: self.projection.weight, spec.output_norm: self.output_norm.weight,
            names.attention_norm: self.attention_norm.weight, names.mlp_norm: self.mlp_norm.weight,
            **self.attention.named, **self.mlp.named,
        }  # fmt: skip
        cos, sin = rotary_tables(cfg, cfg.max_position_embeddings, torch.device("cpu"))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def begin_at(self, layer: Mapping[str, Tensor], norm: Tensor) -> None:
        """Initializes the module as a copy of the base's last decoder layer. The layer's input is the normed
        hidden state plus half the token's normed embedding."""
        for name, tensor in layer.items():
            if name in self.named and self.named[name].shape == tensor.shape:
                self.named[name].copy_(tensor)
        self.output_norm.weight.copy_(norm)
        c = self.cfg.hidden_size
        state, token = (
            (slice(c, None), slice(c)) if self.cfg.mtp.embedding_first else (slice(c), slice(c, None))
        )
        self.projection.weight.zero_()
        self.projection.weight[:, state].fill_diagonal_(1.0)
        self.projection.weight[:, token].fill_diagonal_(0.5)

    def forward(self, hidden: Tensor, embeds: Tensor, depth: int) -> list[Tensor]:
        """Runs the module unrolled over `depth` chained steps.

        hidden [B, L, C]: states after the final norm. embeds [B, L, C]: embeddings of the tokens. Returns the
        normed output [B, L, C] of each depth d = 1 .. depth. Row p of depth d predicts token p + 2. It comes
        from d chained steps, the last of them at position p.

        Depth d at position p attends to the first step's entries at positions <= p - d + 1, which have true
        hidden states, and to the chain's own entries at p - d + 2 .. p. Rows p < d - 1 and the last row have
        no valid input; the loss leaves them out.
        """
        attention, length = self.attention, hidden.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        following = F.pad(embeds[:, 1:], (0, 0, 0, 1))
        if self.cfg.mtp.masks_first:
            following = torch.cat((torch.zeros_like(following[:, :1]), following[:, 1:]), dim=1)
        outs: list[Tensor] = []
        own: list[tuple[Tensor, Tensor]] = []  # keys and values the chain wrote at depth 2, 3, ...
        first: tuple[Tensor, Tensor] | None = None
        for d in range(1, depth + 1):
            parts = self.embedding_norm(following), self.hidden_norm(hidden)
            x = self.projection(torch.cat(parts if self.cfg.mtp.embedding_first else parts[::-1], dim=-1))
            y = self.attention_norm(x)
            q = attention.queries(y, cos, sin).transpose(1, 2)
            k, v = (t.transpose(1, 2) for t in attention.keys_values(y, cos, sin))
            if first is None:
                first = (k, v)
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attention.scale)
            else:
                own.append((k, v))
                reach = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1 - d)
                scores = [(q @ first[0].transpose(-1, -2)).masked_fill(~reach, float("-inf"))]
                values = []
                for age, (k, v) in enumerate(reversed(own)):  # age 0: this depth, at p itself
                    k, v = (F.pad(t[:, :, : length - age], (0, 0, age, 0)) for t in (k, v))
                    scores.append((q * k).sum(-1, keepdim=True))
                    values.append(v)
                p = torch.softmax(torch.cat(scores, -1) * attention.scale, dim=-1)
                mixed = p[..., :length] @ first[1]
                for i, v in enumerate(values):
                    mixed = mixed + p[..., length + i : length + i + 1] * v
            x = x + attention.out(mixed.transpose(1, 2).flatten(-2))
            x = x + self.mlp(self.mlp_norm(x))
            out = self.output_norm(x)
            outs.append(out)
            hidden = F.pad(out[:, :-1], (0, 0, 1, 0))  # the next depth is one position later
        return outs
