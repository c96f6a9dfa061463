"""What the engine asks of a model: hidden states over a paged cache, logits, and a drafter's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.families.config import ModelConfig
from nextn.kvcache.layout import CacheLayout
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
        """How many NextN modules were loaded. Module k's entries are in layer num_hidden_layers + k of the
        pool."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights held, NextN modules included."""

    @property
    def cache_layout(self) -> CacheLayout:
        """What the KV cache holds of a token in each layer."""

    def batch(self, spans: Sequence[Span], page_size: int) -> Any:
        """The spans laid out one after another, as `forward` and `draft` want them. T rows: those of the
        spans, padded to a multiple of row_align."""

    # What the next four return may be written over by the next call of the same one.

    def forward(self, batch: Any, pool: KVPool) -> Tensor:
        """Runs the target over the batch and writes its KV entries. Returns hidden [T, C], normed."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, C], N a multiple of row_align -> [N, vocab] f32."""

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """The same of the drafter's head: the target's, or one with coarser weights, or of some tokens
        only; -infinity for the others. May share its memory with `logits`."""

    def draft(self, batch: Any, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        """A step of NextN module `layer`. The batch's tokens are those AFTER the rows' positions, hidden
        [T, C] the states at them. Writes the module's own KV entries. Returns [T, C], to be put into
        `draft_logits`."""


class Chain(NamedTuple):
    """A chain of guesses to draft. span: of the batch, it goes on from its last row. draw: of the first
    guess; the position counts up. cut: may the cutoff end it?"""

    span: int
    draw: DrawParams
    num_steps: int
    cut: bool


class ChainsRequest(NamedTuple):
    """batch: of committed positions, whose states are hidden[rows]. chains: after some of its spans."""

    batch: Any
    hidden: Tensor
    rows: Sequence[int]
    chains: Sequence[Chain]
    cutoff: Cutoff | None


# What a model may have besides. The first two give the drafts of `nextn.speculative.mtp.MTPDrafter`'s loop,
# sooner.


@runtime_checkable
class ChainDrafter(Protocol):
    def draft_chains(self, request: ChainsRequest, pool: KVPool) -> tuple[list[Draft], Sequence[int]]:
        """`draft` by NextN module 0 over the batch; then the chains, each guess chosen from `draft_logits` by
        its draw and put through `draft`, one position on, for the next. Chains end by
        `nextn.cutoff.CutChains`. Returns the drafts and the rows of each pass after the first."""


@runtime_checkable
class DeviceChoice(Protocol):
    """A model on a device that the host need not wait for. Batches have `tokens` for guesses; row_align 1."""

    def best_draft(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`nextn.ops.base.Ops.best_token` of `draft_logits(hidden)`. The results stay on the device."""


@runtime_checkable
class CountsExperts(Protocol):
    def expert_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """How often rows chose each expert since the start, int64, in layers of the target that have experts
        and in those of NextN modules: [layers, experts] of each. Of several ranks with the same rows only the
        first counts."""


@runtime_checkable
class Chooser(Protocol):
    """A model whose head may be split among ranks: they tell each other less of a choice than of logits."""

    def choices(self, hidden: Tensor, whole: int, draws: Sequence[DrawParams]) -> tuple[Tensor, list[int]]:
        """hidden [N, C] -> the logits of the first `whole` rows, as `logits` has them, and of the others the
        tokens that `draws` ask for, as `nextn.ops.base.Draw` has them."""


def take(model: Model, rows: Tensor, index: list[int]) -> Tensor:
    """rows[index], padded with row 0 to as many rows as the model wants."""
    padded = index + [0] * (align(len(index), model.row_align) - len(index))
    if padded == list(range(rows.shape[0])):
        return rows
    # Pinned, for the copy not to wait until the device has done what it was given.
    places = torch.tensor(padded, pin_memory=rows.is_cuda)
    return rows.index_select(0, places.to(rows.device, non_blocking=True))
