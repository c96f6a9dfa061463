"""One decoder layer: attention and feed-forward, each with a norm before it and a residual connection.

The next norm that reads the residual stream adds their outputs to it. If outputs are split over ranks, they
are gathered before that.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.expert_parallel import ParallelMoE
from nextn.layers.gqa import GQA
from nextn.layers.mla import MLA
from nextn.layers.mlp import MLP, MoE
from nextn.layers.sharing import Sharing
from nextn.ops.base import Addend
from nextn.ops.fp8 import Weight


class DecoderLayer:
    def __init__(self, sharing: Sharing, index: int) -> None:
        sharing = sharing.of_layer(index)
        self.cfg, self.ops, cfg = sharing.cfg, sharing.ops, sharing.cfg
        self.attention_norm, self.mlp_norm = (sharing.empty(cfg.hidden_size) for _ in range(2))
        self.attention = MLA(sharing) if cfg.gqa is None else GQA(sharing)
        self.mlp: MLP | MoE
        if not cfg.is_moe(index):
            self.mlp = MLP(sharing, cfg.names.mlp, cfg.intermediate_size)
        else:
            self.mlp = MoE(sharing) if sharing.experts is None else ParallelMoE(sharing, index)

    def targets(self, prefix: str) -> dict[str, Weight]:
        names = self.cfg.names
        return {
            prefix + names.attention_norm: self.attention_norm,
            prefix + names.mlp_norm: self.mlp_norm,
            **self.attention.targets(prefix),
            **self.mlp.targets(prefix),
        }

    def forward(
        self, x: Tensor, added: Sequence[Addend], batch: Batch, cos: Tensor, sin: Tensor, cache: Tensor
    ) -> tuple[Tensor, Sequence[Addend]]:
        """x [T, C] f32 is the residual stream, `added` the terms not yet added to it. Returns both after the
        layer. Writes the batch's entries to `cache`, a layer of the pool."""
        eps = self.cfg.rms_norm_eps
        x, normed = self.ops.add_norm(x, added, self.attention_norm, eps)
        attended = self.attention.forward(normed, batch, cos, sin, cache)
        x, normed = self.ops.add_norm(x, (attended,), self.mlp_norm, eps)
        return x, self.mlp.forward(normed, batch)
