"""The training model of `nextn-tiny`: DeepSeek-V3's arithmetic, differentiable.

It shares no code with `nextn.models` on purpose, so that its checkpoint is a real test of the engine's loader
and arithmetic.

Shapes: B sequences, L positions, T = B*L tokens, C hidden size, H heads, E experts, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TinyConfig:
    """The architecture; names as in DeepSeek's config.json."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    intermediate_size: int = 768
    moe_intermediate_size: int = 128
    first_k_dense_replace: int = 1
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.5
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rope_factor: float = 4.0
    rope_original: int = 1024
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    rms_norm_eps: float = 1e-6


def yarn_tables(cfg: TinyConfig, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [length, qk_rope_head_dim / 2] f32 (YaRN, arXiv 2309.00071)."""
    dim, base = cfg.qk_rope_head_dim, cfg.rope_theta
    freq = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def correction(rotations: float) -> float:
        return dim * math.log(cfg.rope_original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(cfg.beta_fast)), 0)
    high = min(math.ceil(correction(cfg.beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    freq = freq / cfg.rope_factor * ramp + freq * (1 - ramp)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * freq[None]
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of adjacent pairs. x [..., L, heads, rope], cos and sin [(...,) L, rope / 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2).to(x.dtype)


class Arithmetic:
    """The dtype of matrix products: bf16 for training, f32 for evaluation."""

    dtype = torch.bfloat16

    @staticmethod
    @contextmanager
    def use(dtype: torch.dtype) -> Iterator[None]:
        before, Arithmetic.dtype = Arithmetic.dtype, dtype
        try:
            yield
        finally:
            Arithmetic.dtype = before


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(Arithmetic.dtype)


class Linear(nn.Linear):
    """A linear layer without bias. It multiplies in `Arithmetic.dtype`; its weight is f32."""

    def __init__(self, n_in: int, n_out: int, scale: float = 1.0) -> None:
        super().__init__(n_in, n_out, bias=False)
        nn.init.normal_(self.weight, std=scale * n_in**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(Arithmetic.dtype), self.weight.to(Arithmetic.dtype))


class _Dispatch(torch.autograd.Function):
    """Rows of x [T, C] in the order of experts: [T*k, C]. The backward pass gathers too; it does not
    scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, perm: Tensor, inv: Tensor, k: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inv)
        ctx.k = k
        return x.index_select(0, perm // k)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (inv,) = ctx.saved_tensors
        return grad.index_select(0, inv).unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class _Undo(torch.autograd.Function):
    """Rows back in their original order: y [T*k, C] -> [T, k, C]."""

    @staticmethod
    def forward(ctx, y: Tensor, perm: Tensor, inv: Tensor, k: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(perm)
        return y.index_select(0, inv).unflatten(0, (-1, k))

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (perm,) = ctx.saved_tensors
        return grad.flatten(0, 1).index_select(0, perm), None, None, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class MLP(nn.Module):
    def __init__(self, dim: int, inner: int, out_scale: float) -> None:
        super().__init__()
        self.gate_proj = Linear(dim, inner)
        self.up_proj = Linear(dim, inner)
        self.down_proj = Linear(inner, dim, out_scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Gate(nn.Module):
    """Sigmoid scores, bias-corrected group-limited top-k (DeepSeek-V3, arXiv 2412.19437, 2.1.2)."""

    e_score_correction_bias: Tensor

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.weight = nn.Parameter(torch.randn(cfg.n_routed_experts, cfg.hidden_size) * cfg.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(cfg.n_routed_experts))
        self.register_buffer("load", torch.zeros(cfg.n_routed_experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cfg = self.cfg
        scores = torch.sigmoid(F.linear(x.float(), self.weight))
        with torch.no_grad():
            biased = scores + self.e_score_correction_bias
            groups = biased.view(-1, cfg.n_group, cfg.n_routed_experts // cfg.n_group)
            best = groups.topk(2, dim=-1).values.sum(-1).topk(cfg.topk_group, dim=-1).indices
            keep = torch.zeros_like(groups[..., 0]).scatter_(1, best, 1.0)
            biased = groups.masked_fill(keep[..., None] == 0, float("-inf")).flatten(1)
            index = biased.topk(cfg.num_experts_per_tok, dim=-1).indices
        weight = scores.gather(1, index)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * cfg.routed_scaling_factor
        return index, weight


class MoE(nn.Module):
    def __init__(self, cfg: TinyConfig, out_scale: float) -> None:
        super().__init__()
        self.k = cfg.num_experts_per_tok
        self.gate = Gate(cfg)
        self.experts = nn.ModuleList(
            MLP(cfg.hidden_size, cfg.moe_intermediate_size, out_scale / cfg.routed_scaling_factor)
            for _ in range(cfg.n_routed_experts)
        )
        self.shared_experts = MLP(
            cfg.hidden_size, cfg.moe_intermediate_size * cfg.n_shared_experts, out_scale
        )

    def forward(self, x: Tensor) -> Tensor:
        index, weight = self.gate(x)
        flat = index.flatten()
        counts = torch.bincount(flat, minlength=len(self.experts))
        if self.training:
            self.gate.load += counts
        perm = torch.argsort(flat, stable=True)
        inv = torch.empty_like(perm)
        inv[perm] = torch.arange(perm.numel())
        rows = _Dispatch.apply(x, perm, inv, self.k).split(counts.tolist())
        out = torch.cat([expert(r) for expert, r in zip(self.experts, rows, strict=True)])
        routed = _Undo.apply(out, perm, inv, self.k)
        return self.shared_experts(x) + (routed * weight[..., None].to(routed.dtype)).sum(1)

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Balances without an auxiliary loss: lowers the bias of experts with more load than the mean, and
        raises that of the others."""
        load = self.gate.load
        if load.sum() > 0:
            self.gate.e_score_correction_bias -= rate * torch.sign(load - load.mean())
            load.zero_()


class Attention(nn.Module):
    """MLA in its naive form: keys and values are expanded from the latent."""

    def __init__(self, cfg: TinyConfig, out_scale: float) -> None:
        super().__init__()
        self.cfg = cfg
        h = cfg.num_attention_heads
        nope, rope, v = cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim
        self.q_a_proj = Linear(cfg.hidden_size, cfg.q_lora_rank)
        self.q_a_layernorm = RMSNorm(cfg.q_lora_rank, cfg.rms_norm_eps)
        self.q_b_proj = Linear(cfg.q_lora_rank, h * (nope + rope))
        self.kv_a_proj_with_mqa = Linear(cfg.hidden_size, cfg.kv_lora_rank + rope)
        self.kv_a_layernorm = RMSNorm(cfg.kv_lora_rank, cfg.rms_norm_eps)
        self.kv_b_proj = Linear(cfg.kv_lora_rank, h * (nope + v))
        self.o_proj = Linear(h * v, cfg.hidden_size, out_scale)
        mscale = 0.1 * math.log(cfg.rope_factor) + 1.0
        self.scale = (nope + rope) ** -0.5 * mscale * mscale

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, C] -> [B, L, H, nope + rope]."""
        cfg = self.cfg
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (cfg.num_attention_heads, -1))
        nope, rope = q.split((cfg.qk_nope_head_dim, cfg.qk_rope_head_dim), dim=-1)
        return torch.cat((nope, rotate(rope, cos, sin)), dim=-1)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, L, C] -> keys [B, L, H, nope + rope], values [B, L, H, v]."""
        cfg = self.cfg
        latent, rope = self.kv_a_proj_with_mqa(x).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (cfg.num_attention_heads, -1))
        nope, value = kv.split((cfg.qk_nope_head_dim, cfg.v_head_dim), dim=-1)
        rope = rotate(rope[:, :, None], cos, sin).expand(-1, -1, cfg.num_attention_heads, -1)
        return torch.cat((nope, rope), dim=-1), value

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = self.queries(x, cos, sin)
        k, v = self.keys_values(x, cos, sin)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=self.scale
        )
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, cfg: TinyConfig, index: int) -> None:
        super().__init__()
        out_scale = (2 * cfg.num_hidden_layers) ** -0.5
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, out_scale)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp: nn.Module = (
            MLP(cfg.hidden_size, cfg.intermediate_size, out_scale)
            if index < cfg.first_k_dense_replace
            else MoE(cfg, out_scale)
        )

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x, self.post_attention_layernorm(x)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, y = self.attend(x, cos, sin)
        return x + self.mlp(y.flatten(0, 1)).view_as(x)


class NextN(nn.Module):
    """The MTP module. Training unrolls it exactly like the drafter chains it in use."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.enorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.hnorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.eh_proj = Linear(2 * cfg.hidden_size, cfg.hidden_size)
        self.layer = Layer(cfg, cfg.num_hidden_layers)
        self.shared_head_norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(self, hidden: Tensor, embeds: Tensor, depth: int, cos: Tensor, sin: Tensor) -> list[Tensor]:
        """Runs the module unrolled over `depth` chained steps.

        hidden [B, L, C]: states after the final norm. embeds [B, L, C]: embeddings of the tokens. Returns the
        normed output [B, L, C] of each depth d = 1 .. depth. Row p of depth d predicts token p + 2. It comes
        from d chained steps, the last of them at position p.

        Depth d at position p attends to the first step's entries at positions <= p - d + 1, which have true
        hidden states, and to the chain's own entries at p - d + 2 .. p. Rows p < d - 1 and the last row have
        no valid input; the loss must leave them out.
        """
        attn = self.layer.self_attn
        assert isinstance(attn, Attention)
        length = hidden.shape[1]
        following = F.pad(embeds[:, 1:], (0, 0, 0, 1))
        outs: list[Tensor] = []
        own: list[tuple[Tensor, Tensor]] = []  # keys and values the chain wrote at depth 2, 3, ...
        first: tuple[Tensor, Tensor] | None = None
        for d in range(1, depth + 1):
            x = self.eh_proj(torch.cat((self.enorm(following), self.hnorm(hidden)), dim=-1))
            y = self.layer.input_layernorm(x)
            q = attn.queries(y, cos, sin).transpose(1, 2)
            k, v = (t.transpose(1, 2) for t in attn.keys_values(y, cos, sin))
            if first is None:
                first = (k, v)
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attn.scale)
            else:
                own.append((k, v))
                reach = torch.ones(length, length, dtype=torch.bool).tril(1 - d)
                scores = [(q @ first[0].transpose(-1, -2)).float().masked_fill(~reach, float("-inf"))]
                values = []
                for age, (k, v) in enumerate(reversed(own)):  # age 0: this depth, at p itself
                    k, v = (F.pad(t[:, :, : length - age], (0, 0, age, 0)) for t in (k, v))
                    scores.append((q * k).float().sum(-1, keepdim=True))
                    values.append(v)
                p = torch.softmax(torch.cat(scores, -1) * attn.scale, dim=-1).to(q.dtype)
                mixed = p[..., :length] @ first[1]
                for i, v in enumerate(values):
                    mixed = mixed + p[..., length + i : length + i + 1] * v
            x = x + attn.o_proj(mixed.transpose(1, 2).flatten(-2))
            y = self.layer.post_attention_layernorm(x)
            x = x + self.layer.mlp(y.flatten(0, 1)).view_as(x)
            out = self.shared_head_norm(x)
            outs.append(out)
            hidden = F.pad(out[:, :-1], (0, 0, 1, 0))  # the next depth is one position later
        return outs


class Tiny(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.3)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.lm_head = Linear(cfg.hidden_size, cfg.vocab_size, 0.1)
        self.nextn = NextN(cfg)
        cos, sin = yarn_tables(cfg, cfg.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def trunk(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, L] -> (hidden after the final norm [B, L, C], embeddings [B, L, C])."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        embeds = self.embed_tokens(tokens)
        x = embeds.to(Arithmetic.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x), embeds

    def drafts(self, hidden: Tensor, embeds: Tensor, depth: int) -> list[Tensor]:
        length = hidden.shape[1]
        return self.nextn(hidden, embeds, depth, self.cos[:length], self.sin[:length])
