"""One decoder layer: attention and feed-forward, each behind a norm and a residual."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.mla import MLA
from nextn.layers.mlp import MLP, MoE
from nextn.models.config import ModelConfig
from nextn.ops.base import Ops


class DecoderLayer:
    def __init__(
        self, cfg: ModelConfig, index: int, ops: Ops, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.cfg, self.ops = cfg, ops
        self.attention_norm = torch.empty(cfg.hidden_size, dtype=dtype, device=device)
        self.attention = MLA(cfg, ops, dtype, device)
        self.mlp_norm = torch.empty(cfg.hidden_size, dtype=dtype, device=device)
        self.mlp: MLP | MoE = (
            MoE(cfg, ops, dtype, device)
            if cfg.is_moe(index)
            else MLP(cfg.hidden_size, cfg.intermediate_size, ops, dtype, device)
        )

    def targets(self, prefix: str) -> dict[str, Tensor]:
        return {
            f"{prefix}input_layernorm.weight": self.attention_norm,
            f"{prefix}post_attention_layernorm.weight": self.mlp_norm,
            **self.attention.targets(f"{prefix}self_attn."),
            **self.mlp.targets(f"{prefix}mlp."),
        }

    def forward(self, x: Tensor, batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
        """x [T, C] f32 residual stream -> [T, C]; writes the batch's entries to `cache` [slots, D]."""
        eps = self.cfg.rms_norm_eps
        normed = self.ops.rms_norm(x, self.attention_norm, eps)
        x = self.attention.forward(normed, batch, cos, sin, cache, x)
        return self.mlp.forward(self.ops.rms_norm(x, self.mlp_norm, eps), batch, x)
