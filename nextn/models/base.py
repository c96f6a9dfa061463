"""What the engine asks of a model: hidden states over a paged cache, logits, and a drafter's step."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Batch
from nextn.models.config import ModelConfig


class Model(Protocol):
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype

    @property
    def can_draft(self) -> bool:
        """Was a NextN module loaded?"""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights held, NextN modules included."""

    @property
    def cache_width(self) -> int:
        """Elements of one KV cache entry of one layer."""

    def forward(self, batch: Batch, pool: KVPool) -> Tensor:
        """Runs the target over the batch and writes its KV entries. Returns hidden [T, C], normed."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, C], N a multiple of ROW_ALIGN -> [N, vocab] f32."""

    def draft(self, batch: Batch, hidden: Tensor, pool: KVPool) -> Tensor:
        """A NextN step. batch.tokens[t] is the token AFTER the row's position, hidden [T, C] the
        state at it. Writes the module's own KV entries. Returns [T, C], to be put into `logits`."""
