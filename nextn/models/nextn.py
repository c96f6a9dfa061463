"""A NextN (MTP) module: from the hidden state at position i and token i + 1, it predicts token i + 2.

x_i = eh_proj([enorm(embed(t_{i+1})) | hnorm(h_i)]), one decoder layer at position i, then
shared_head.norm (arXiv 2412.19437, 2.2; the family's MTPSpec says which half is first). h_i is the
target's hidden state after its final norm. For further drafts it is this module's own output, after
shared_head.norm. The module uses the target's embedding and head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.layers.decoder import DecoderLayer
from nextn.layers.sharing import Sharing
from nextn.ops.base import Tables
from nextn.ops.fp8 import Weight


class NextN:
    def __init__(self, sharing: Sharing, index: int) -> None:
        self.cfg, self.ops, self.index, self.spec = sharing.cfg, sharing.ops, index, sharing.cfg.mtp
        size = self.cfg.hidden_size
        self.enorm, self.hnorm, self.norm = (sharing.empty(size) for _ in range(3))
        self.eh_proj = sharing.empty(size, 2 * size)
        self.layer = DecoderLayer(sharing, index)

    def targets(self) -> dict[str, Weight]:
        spec, prefix = self.spec, self.cfg.module_at(self.index - self.cfg.num_hidden_layers)
        return {
            prefix + spec.embedding_norm: self.enorm,
            prefix + spec.hidden_norm: self.hnorm,
            prefix + spec.projection: self.eh_proj,
            prefix + spec.output_norm: self.norm,
            **self.layer.targets(prefix),
        }

    def forward(
        self, hidden: Tensor, rows: Tensor | None, batch: Batch, tables: Tables, cache: Tensor
    ) -> Tensor:
        """hidden [T, C] (or hidden[rows]) and the batch's tokens, those at the next positions -> [T, C]."""
        eps, norms, spec = self.cfg.rms_norm_eps, (self.enorm, self.hnorm), self.spec
        halves = hidden, rows, norms, eps, spec.embedding_first, spec.masks_first
        both, cos, sin = self.ops.embed_beside(batch.tokens, batch.positions, tables, *halves)
        x = self.ops.linear(both, self.eh_proj, torch.float32)
        x, added = self.layer.forward(x, (), batch, cos, sin, cache)
        return self.ops.add_norm(x, added, self.norm, eps)[1]
