"""A NextN (MTP) module: from a hidden state and the token after it, the token after that.

x_i = eh_proj([enorm(embed(t_{i+1})) | hnorm(h_i)]), one decoder layer at position i, then
shared_head.norm (arXiv 2412.19437, 2.2; embedding first, as DeepSeek's checkpoints have it). h_i is the
target's hidden state after its final norm, or, when drafts are chained, this module's own output, which
is taken after shared_head.norm. Embedding and head are the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.decoder import DecoderLayer
from nextn.models.config import ModelConfig
from nextn.ops.base import Ops


class NextN:
    def __init__(
        self, cfg: ModelConfig, index: int, ops: Ops, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.cfg, self.ops, self.index = cfg, ops, index
        size = cfg.hidden_size
        self.enorm, self.hnorm, self.norm = (torch.empty(size, dtype=dtype, device=device) for _ in range(3))
        self.eh_proj = torch.empty(size, 2 * size, dtype=dtype, device=device)
        self.layer = DecoderLayer(cfg, index, ops, dtype, device)

    def targets(self) -> dict[str, Tensor]:
        prefix = f"model.layers.{self.index}."
        return {
            f"{prefix}enorm.weight": self.enorm,
            f"{prefix}hnorm.weight": self.hnorm,
            f"{prefix}eh_proj.weight": self.eh_proj,
            f"{prefix}shared_head.norm.weight": self.norm,
            **self.layer.targets(prefix),
        }

    def forward(
        self, hidden: Tensor, embeds: Tensor, batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor
    ) -> Tensor:
        """hidden [T, C] at the batch's positions, embeds [T, C] of the tokens one further -> [T, C]."""
        eps = self.cfg.rms_norm_eps
        both = torch.cat(
            (self.ops.rms_norm(embeds, self.enorm, eps), self.ops.rms_norm(hidden, self.hnorm, eps)), dim=-1
        )
        x = self.ops.linear(both, self.eh_proj, torch.float32)
        x, added = self.layer.forward(x, (), batch, cos, sin, cache)
        return self.ops.add_norm(x, added, self.norm, eps)[1]
