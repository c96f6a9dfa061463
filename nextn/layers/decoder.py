"""One decoder layer: attention and feed-forward, each behind a norm and a residual.

What each adds to the residual stream is added by the norm that reads the stream next: where outputs are split
over ranks, they are gathered before that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.distributed.group import Group
from nextn.families.config import ModelConfig
from nextn.layers.batch import Batch
from nextn.layers.mla import MLA
from nextn.layers.mlp import MLP, MoE
from nextn.ops.base import Ops


class DecoderLayer:
    def __init__(
        self,
        cfg: ModelConfig,
        index: int,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
    ) -> None:
        self.cfg, self.ops = cfg, ops
        self.attention_norm = torch.empty(cfg.hidden_size, dtype=dtype, device=device)
        self.attention = MLA(cfg, ops, dtype, device, group)
        self.mlp_norm = torch.empty(cfg.hidden_size, dtype=dtype, device=device)
        self.mlp: MLP | MoE = (
            MoE(cfg, ops, dtype, device, group)
            if cfg.is_moe(index)
            else MLP(cfg, cfg.names.mlp, cfg.intermediate_size, ops, dtype, device, group)
        )

    def targets(self, prefix: str) -> dict[str, Tensor]:
        names = self.cfg.names
        return {
            prefix + names.attention_norm: self.attention_norm,
            prefix + names.mlp_norm: self.mlp_norm,
            **self.attention.targets(prefix),
            **self.mlp.targets(prefix),
        }

    def rows(self, prefix: str) -> dict[str, range]:
        return self.attention.rows(prefix) | self.mlp.rows(prefix)

    def forward(
        self, x: Tensor, added: Sequence[Tensor], batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """x [T, C] f32, the residual stream, and what is still to be added to it -> both after the layer.
        Writes the batch's entries to `cache` [slots, D]."""
        eps = self.cfg.rms_norm_eps
        x, normed = self.ops.add_norm(x, added, self.attention_norm, eps)
        attended = self.attention.forward(normed, batch, cos, sin, cache)
        x, normed = self.ops.add_norm(x, (attended,), self.mlp_norm, eps)
        return x, self.mlp.forward(normed, batch)
