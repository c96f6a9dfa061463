"""The two forms of MLA (arXiv 2405.04434, 2.1) agree: ours, absorbed and over the paged latent cache,
against the naive one, which expands every key and value and is written out here in f64.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.checkpoints import tiny_config
from torch import Tensor

from nextn.distributed.group import Alone
from nextn.families.config import ModelConfig
from nextn.layers.batch import Span, build_batch
from nextn.layers.mla import MLA
from nextn.layers.rotary import rotary_tables
from nextn.layers.sharing import Sharing
from nextn.ops.reference import Reference

CPU = torch.device("cpu")
PAGE = 4
CASES: dict[str, dict[str, Any]] = {
    "q_lora, yarn": {},
    "q_proj, no yarn": {"q_lora_rank": None, "rope_scaling": None},
    "three heads, odd widths": {
        "num_attention_heads": 3, "num_key_value_heads": 3, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6,
        "v_head_dim": 13, "kv_lora_rank": 17, "hidden_size": 50,
    },
    "five heads, wide values": {"num_attention_heads": 5, "num_key_value_heads": 5, "v_head_dim": 24},
}  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turn(x: Tensor, angle: Tensor) -> Tensor:
    """x [L, ..., P]: the pair (x[2i], x[2i + 1]) of position l turned by angle[l, i]."""
    out = torch.empty_like(x)
    angle = angle.view(len(angle), *(1,) * (x.dim() - 2), -1)
    a, b = x[..., 0::2], x[..., 1::2]
    out[..., 0::2] = a * angle.cos() - b * angle.sin()
    out[..., 1::2] = a * angle.sin() + b * angle.cos()
    return out


def naive_mla(cfg: ModelConfig, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """x [L, C] f64 at positions 0..L-1 -> [L, C] f64. Keys and values of every head are made in full."""
    length, heads, nope = len(x), cfg.num_attention_heads, cfg.qk_nope_head_dim
    if cfg.q_lora_rank is None:
        q = x @ w["q_proj"].T
    else:
        q = rms_norm(x @ w["q_a_proj"].T, w["q_a_layernorm"]) @ w["q_b_proj"].T
    q = q.view(length, heads, -1)
    latent, key_rope = (x @ w["kv_a_proj_with_mqa"].T).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), -1)
    kv = (rms_norm(latent, w["kv_a_layernorm"]) @ w["kv_b_proj"].T).view(length, heads, -1)
    dim = cfg.qk_rope_head_dim
    freq = cfg.rope_theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scale = (nope + dim) ** -0.5
    if cfg.rope_scaling is not None:  # mscale == mscale_all_dim == 1: no gain on the tables
        y = cfg.rope_scaling
        # What turns more than beta_fast times in the original context stays, less than beta_slow slows down.
        spans = [y.original_max_position_embeddings / (b * 2 * math.pi) for b in (y.beta_fast, y.beta_slow)]
        bounds = [dim * math.log(s) / (2 * math.log(cfg.rope_theta)) for s in spans]
        low, high = max(math.floor(bounds[0]), 0), min(math.ceil(bounds[1]), dim - 1)
        for i in range(dim // 2):
            slow = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
            freq[i] *= slow / y.factor + 1 - slow
        scale *= (0.1 * math.log(y.factor) + 1) ** 2
    angle = torch.arange(length, dtype=torch.float64)[:, None] * freq
    keys = torch.cat((kv[..., :nope], turn(key_rope, angle)[:, None].expand(-1, heads, -1)), -1)
    query = torch.cat((q[..., :nope], turn(q[..., nope:], angle)), -1)
    out = torch.empty(length, heads, cfg.v_head_dim, dtype=torch.float64)
    for i in range(length):
        for h in range(heads):
            weight = (keys[: i + 1, h] @ query[i, h] * scale).softmax(0)
            out[i, h] = weight @ kv[: i + 1, h, nope:]
    return out.flatten(1) @ w["o_proj"].T


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [1, 4, 37, 263])
def test_absorbed_equals_naive(name: str, length: int) -> None:
    cfg = ModelConfig.from_dict(tiny_config(max_position_embeddings=512, **CASES[name]))
    mla = MLA(Sharing(cfg, Reference(), torch.float32, CPU, Alone()))
    gen = torch.Generator().manual_seed(length)
    weights = {}
    for full, target in mla.targets("").items():
        std = target.shape[-1] ** -0.5
        value = 1 + 0.3 * torch.randn(target.shape, generator=gen) if target.dim() == 1 else None
        target.copy_(std * torch.randn(target.shape, generator=gen) if value is None else value)
        weights[full.removeprefix("self_attn.").removesuffix(".weight")] = target.double()
    x = torch.randn(length, cfg.hidden_size, generator=gen)
    want = naive_mla(cfg, weights, x.double())

    pages = random.Random(length).sample(range(1, 200), -(-length // PAGE))
    cache = torch.randn(200 * PAGE, cfg.latent_dim, generator=gen) * 50  # garbage where nothing is written
    cos, sin = rotary_tables(cfg, length, CPU)
    got = []
    cuts = [0, length // 3, length - length // 4, length]
    for start, end in pairwise(cuts):
        if start == end:
            continue
        batch = build_batch([Span([0] * (end - start), start, pages)], PAGE, CPU)
        rows = torch.zeros(len(batch.tokens), cfg.hidden_size)
        rows[: end - start] = x[start:end]
        at = batch.positions
        got.append(mla.forward(rows, batch, cos[at], sin[at], cache)[: end - start])
    out = torch.cat(got).double()
    assert 0.05 < want.std() < 5
    assert (out - want).abs().max() < 1e-5
