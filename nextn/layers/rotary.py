"""Tables for rotary embeddings: plain, linear, Llama 3.1's, YaRN (arXiv 2309.00071) with DeepSeek's
mscales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextn.families.config import LinearScaling, Llama3Scaling, ModelConfig, YarnScaling


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def rotary_tables(cfg: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0..length-1, each [length, qk_rope_head_dim / 2] f32."""
    dim, base = cfg.qk_rope_head_dim, cfg.rope_theta
    freq: Tensor = base ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    gain, scaling = 1.0, cfg.rope_scaling
    if isinstance(scaling, LinearScaling):
        freq = freq / scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        freq = _llama3(freq, scaling)
    elif scaling is not None:
        freq = _yarn(freq, scaling, dim, base)
        gain = yarn_mscale(scaling.factor, scaling.mscale)
        gain /= yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * freq
    return (angle.cos() * gain).to(device), (angle.sin() * gain).to(device)


def _yarn(freq: Tensor, yarn: YarnScaling, dim: int, base: float) -> Tensor:
    def dim_of(rotations: float) -> float:
        span = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(span) / (2 * math.log(base))

    low = max(math.floor(dim_of(yarn.beta_fast)), 0)
    high = min(math.ceil(dim_of(yarn.beta_slow)), dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1.0 - ramp.clamp(0, 1)
    return freq / yarn.factor * (1 - keep) + freq * keep


def _llama3(freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's frequencies. If the original context has fewer than low_freq_factor waves, the frequency is
    divided by `factor`. If it has more than high_freq_factor waves, the frequency is kept. Between these, it
    is interpolated."""
    times = scaling.original_max_position_embeddings * freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((times - low) / (high - low)).clamp(0, 1)
    return freq / scaling.factor * (1 - keep) + freq * keep


def softmax_scale(cfg: ModelConfig) -> float:
    """1 / sqrt(query width), times mscale squared under YaRN."""
    scale: float = (cfg.qk_nope_head_dim + cfg.qk_rope_head_dim) ** -0.5
    yarn = cfg.rope_scaling
    if isinstance(yarn, YarnScaling) and yarn.mscale_all_dim:
        scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
    return scale
