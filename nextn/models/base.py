"""The contract of a model: hidden states over a paged cache, logits, and the NextN layer's pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.families.config import ModelConfig
from nextn.kvcache.layout import CacheLayout, KeyValueLayout, LatentLayout
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.ops.base import DrawParams, align


class Model(Protocol):
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype  # of the KV cache
    row_align: int  # `logits` and `draft` take rows in multiples of this

    @property
    def nextn_layers(self) -> int:
        """Number of NextN modules that were loaded. Entries of module k are in the pool's layer
        num_hidden_layers + k."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, including NextN modules."""

    @property
    def cache_layout(self) -> CacheLayout:
        """The layout of a token's entry in a layer of the KV cache."""

    def batch(self, spans: Sequence[Span], page_size: int) -> Any:
        """The batch for `forward` and `draft`: the spans one after another. T rows: those of the spans,
        padded to a multiple of row_align."""

    # The next call of any of these four methods can overwrite the result of its previous call.

    def forward(self, batch: Any, pool: KVPool) -> Tensor:
        """Runs the target over the batch and writes its KV entries. Returns hidden [T, C], after the norm."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, C], N a multiple of row_align -> [N, vocab] f32."""

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """The same with the drafter's head. This is the target's head, or one with coarser weights, or one
        for some tokens only (-infinity for the others). It can share its memory with `logits`."""

    def draft(self, batch: Any, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        """A pass of NextN module `layer`. The tokens of the batch are those AFTER the rows' positions; hidden
        [T, C] has the states at the positions. Writes the module's KV entries. Returns [T, C], the input of
        `draft_logits`."""


class Chain(NamedTuple):
    """A chain to draft. span: index of a span of the batch; the chain begins after its last row. draw: for
    the first guess; its position increases by 1 for each further guess. cut: whether the cutoff applies."""

    span: int
    draw: DrawParams
    num_steps: int
    cut: bool


class ChainsRequest(NamedTuple):
    """batch: committed positions; their states are hidden[rows]. chains: each begins after a span of it."""

    batch: Any
    hidden: Tensor
    rows: Sequence[int]
    chains: Sequence[Chain]
    cutoff: Cutoff | None


# Optional abilities of a model. The first two give the same drafts as the loop of
# `nextn.speculative.mtp.MTPDrafter`, faster.


@runtime_checkable
class ChainDrafter(Protocol):
    def draft_chains(self, request: ChainsRequest, pool: KVPool) -> tuple[list[Draft], Sequence[int]]:
        """Runs `draft` of NextN module 0 over the batch, and then drafts the chains. Each guess is chosen
        from `draft_logits` by its draw; `draft` then runs over it for the next one. `nextn.cutoff.CutChains`
        ends chains. Returns the drafts and the rows of each pass after the first."""


@runtime_checkable
class DeviceChoice(Protocol):
    """A model whose guesses stay on the device, so the host does not wait. Its batches take `tokens` from the
    device, and row_align is 1."""

    def best_draft(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`nextn.ops.base.Ops.best_token` of `draft_logits(hidden)`. The results stay on the device."""


@runtime_checkable
class CountsExperts(Protocol):
    def expert_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """How often rows have chosen each expert since the start: int64 [layers, experts], first for the
        target's layers with experts, then for those of NextN modules. If several ranks have the same rows,
        only the first rank counts."""


@runtime_checkable
class Chooser(Protocol):
    """A model that can choose tokens. If ranks share its head, they exchange fewer bytes than for logits."""

    def choices(self, hidden: Tensor, whole: int, draws: Sequence[DrawParams]) -> tuple[Tensor, list[int]]:
        """hidden [N, C] -> the logits of the first `whole` rows, as from `logits`, and the tokens that
        `draws` choose for the other rows, as from `nextn.ops.base.Draw`."""


def layout_of(cfg: ModelConfig, align: int = 1) -> LatentLayout | KeyValueLayout:
    """The layout of a model's cache, for kernels that read multiples of `align` elements."""
    if cfg.gqa is None:
        return LatentLayout(cfg.kv_lora_rank, cfg.qk_rope_head_dim, align)
    return KeyValueLayout(cfg.gqa.num_key_value_heads, cfg.gqa.head_dim, align)


def take(model: Model, rows: Tensor, index: list[int]) -> Tensor:
    """rows[index], padded with row 0 to a multiple of the model's row_align."""
    padded = index + [0] * (align(len(index), model.row_align) - len(index))
    if padded == list(range(rows.shape[0])):
        return rows
    # Pinned memory, so that the copy does not wait until the device has finished its work.
    places = torch.tensor(padded, pin_memory=rows.is_cuda)
    return rows.index_select(0, places.to(rows.device, non_blocking=True))
