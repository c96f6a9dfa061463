"""The target and its NextN modules in plain torch, for all families. Attention is MLA or GQA, feed-forward
blocks are dense or DeepSeek-V3's experts. Arithmetic only; `nextn.models.loader` loads the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nextn.distributed.group import Alone, Group
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Batch, Span, build_batch
from nextn.layers.decoder import DecoderLayer
from nextn.layers.expert_parallel import ParallelMoE
from nextn.layers.head_rows import as_computed
from nextn.layers.replicas import ExpertParallel
from nextn.layers.rotary import rotary_tables
from nextn.layers.sharing import Sharing
from nextn.models.base import layout_of
from nextn.models.names import expected_tensors
from nextn.models.nextn import NextN
from nextn.ops.base import ROW_ALIGN, Addend, Ops, Tables
from nextn.ops.fp8 import Fp8Matrix, Weight


class TorchModel:
    """Weights are uninitialised until every entry of `targets()` has been filled, by `place`.

    The residual stream is f32. Weights, cache and hidden states may have another dtype.

    naive_prompts: long spans use MLA's naive form. draft_tokens: the tokens that may be drafted. group: the
    ranks that split the products (`nextn.layers.sharing`). All ranks make the model and run the same passes
    over the same batches; each has the whole hidden states, logits and cache. experts: the target's routed
    experts are shared by all groups of a world. Then all groups call `forward` together; a group without
    rows passes an empty batch. The rest of a step is separate for each group. blocks: decoder layers whose
    matrices stay in e4m3 blocks, see `nextn.models.fp8.block_layers`. fp8_rows: see `Sharing`. Raises
    ValueError if the model's heads or experts cannot be split.
    """

    row_align = ROW_ALIGN

    def __init__(
        self, cfg: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device, nextn_layers: int,
        naive_prompts: bool = False, draft_tokens: Sequence[int] | None = None,
        group: Group = Alone(),  # noqa: B008
        experts: ExpertParallel | None = None, blocks: Mapping[int, int] | None = None,
        fp8_rows: bool = False,
    ) -> None:  # fmt: skip
        self.naive_prompts, self.group = naive_prompts, group
        self.config, self.ops, self.dtype, self.device = cfg, ops, dtype, device
        self.cache_layout = layout_of(cfg)
        self.sharing = sharing = Sharing(cfg, ops, dtype, device, group, blocks, fp8_rows)
        self.world = None if experts is None else experts.world
        self.embedding = sharing.empty(cfg.vocab_size, cfg.hidden_size)
        self.norm = sharing.empty(cfg.hidden_size)
        target = sharing.with_shared_experts(experts)
        self.layers = [DecoderLayer(target, i) for i in range(cfg.num_hidden_layers)]
        self.parallel = [layer.mlp for layer in self.layers if isinstance(layer.mlp, ParallelMoE)]
        self.vocabulary = sharing.vocabulary(draft_tokens)
        head = self.embedding[self.vocabulary.begin : self.vocabulary.end]
        self.head = head if cfg.tie_word_embeddings else torch.empty_like(head)
        first = cfg.num_hidden_layers
        self.nextn = [NextN(sharing, first + k) for k in range(nextn_layers)]
        self.draft_rows: Tensor | None = None  # rows of the head for tokens that may be drafted
        if draft_tokens is not None:
            own = [t - self.vocabulary.begin for t in draft_tokens if t in self.vocabulary.own]
            self.draft_rows = torch.tensor(own, dtype=torch.long, device=device)
        self.tables = Tables(self.embedding, *rotary_tables(cfg, cfg.max_position_embeddings, device))

    @cached_property
    def _targets(self) -> dict[str, Weight]:
        return self.targets()

    @cached_property
    def as_stored(self) -> frozenset[str]:
        """Names of the matrices that `place` takes in e4m3 blocks."""
        return frozenset(name for name, t in self._targets.items() if isinstance(t, Fp8Matrix))

    def place(self, name: str, tensor: Tensor, scale: Tensor | None = None) -> None:
        """Fills in a tensor of the checkpoint, or only its rows in `rows()`. scale: for a name in
        `as_stored`, the block scales as `load_checkpoint` passes them."""
        target, tensor = self._targets[name], as_computed(self.config, name, tensor)
        if isinstance(target, Fp8Matrix):
            assert scale is not None
            target.data.copy_(tensor)
            target.scale.copy_(as_computed(self.config, name, scale))
        else:
            target.copy_(tensor)

    def targets(self) -> dict[str, Weight]:
        """Checkpoint name -> where that tensor goes (views of the fused weights). An expert that another rank
        holds has 0 rows."""
        names = self.config.names
        found: dict[str, Weight] = {names.embedding: self.embedding, names.norm: self.norm}
        if not self.config.tie_word_embeddings:
            found[names.head] = self.head
        for i, layer in enumerate(self.layers):
            found |= layer.targets(names.at(i))
        for module in self.nextn:
            found |= module.targets()
        return found

    def rows(self) -> dict[str, range]:
        """Checkpoint name -> the rows of this tensor that this rank loads, for tensors that ranks split."""
        found = self.sharing.rows(expected_tensors(self.config, self.nextn_layers), self.vocabulary)
        for moe in self.parallel:
            found |= moe.rows()
        return found

    def expert_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Counts only the experts that a world shares. NextN modules have none of them."""
        none = np.zeros((0, self.config.n_routed_experts or 0), np.int64)
        own = [moe.counts for moe in self.parallel]
        return torch.stack(own).cpu().numpy() if own else none, none

    @property
    def nextn_layers(self) -> int:
        return len(self.nextn)

    @property
    def weight_bytes(self) -> int:
        return sum(t.nbytes for t in self.targets().values())

    def batch(self, spans: Sequence[Span], page_size: int) -> Batch:
        return build_batch(spans, page_size, self.device, self.naive_prompts)

    def forward(self, batch: Batch, pool: KVPool) -> Tensor:
        if not batch.rows:
            for moe in self.parallel:
                moe.idle()
            return torch.empty(0, self.config.hidden_size, dtype=self.dtype, device=self.device)
        x, cos, sin = self.ops.embed(batch.tokens, batch.positions, self.tables)
        added: Sequence[Addend] = ()
        for i, layer in enumerate(self.layers):
            x, added = layer.forward(x, added, batch, cos, sin, pool.layer(i))
        return self.ops.add_norm(x, added, self.norm, self.config.rms_norm_eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.vocabulary.whole(self.ops.linear(hidden, self.head, torch.float32))

    def draft_logits(self, hidden: Tensor) -> Tensor:
        if self.draft_rows is None:
            return self.logits(hidden)
        logits = hidden.new_full((len(hidden), len(self.head)), float("-inf"), dtype=torch.float32)
        some = self.ops.linear(hidden, self.head[self.draft_rows], torch.float32)
        return self.vocabulary.whole(logits.index_copy_(1, self.draft_rows, some))

    def draft(self, batch: Batch, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        return self.draft_from(batch, hidden, None, pool, layer)

    def draft_from(
        self, batch: Batch, hidden: Tensor, rows: Tensor | None, pool: KVPool, layer: int = 0
    ) -> Tensor:
        """`draft` for a batch on the device. rows [T]: if given, the states are hidden[rows]."""
        cache = pool.layer(len(self.layers) + layer)
        return self.nextn[layer].forward(hidden, rows, batch, self.tables, cache)
