"""Decides which outputs of a model's products each rank computes. A sum is never split.

| computed in parts | split by | gathered |
|---|---|---|
| queries, their form for the cache, attention, values | heads | values |
| `out`, every `down` | hidden columns | outputs, before they are added to the residual stream |
| every `gate_up` | inner columns | results of SwiGLU |
| the head | slices of the vocabulary | logits |

Routed experts that a whole world shares are split differently: see `nextn.layers.expert_parallel`. Every rank
computes everything else, including the products of the latent. A product is also not split if a rank's part
would have other bits than on one device (`nextn.ops.columns`): in plain torch, with some BLAS and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from nextn.distributed.group import Group, bounds
from nextn.distributed.split import Split
from nextn.families.config import ModelConfig
from nextn.layers.replicas import ExpertParallel
from nextn.ops.base import Ops
from nextn.ops.columns import heads_separable, outputs_separable
from nextn.ops.fp8 import Fp8Matrix, Weight


class Sharing:
    """The arguments of all layers of one rank's model: configuration, ops, dtype, device, and splits. All
    ranks call the methods that return splits in the same order, because the ranks vote on each split."""

    # For layers whose routed experts a world shares: how they do, and the sharing among one shard's slices.
    experts: ExpertParallel | None = None
    slices: Sharing
    block = 0  # inputs of a block, for a layer in e4m3 blocks; otherwise 0

    def __init__(
        self, cfg: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device, group: Group,
        blocks: Mapping[int, int] | None = None, fp8_rows: bool = False,
    ) -> None:  # fmt: skip
        """blocks: inputs of a block, by decoder layer, for layers whose products read e4m3 blocks. fp8_rows:
        routed experts read rows rounded to e4m3 (`nextn.ops.fp8_rows`)."""
        self.fp8_rows = fp8_rows
        self.cfg, self.ops, self.dtype, self.device, self.group = cfg, ops, dtype, device, group
        self._blocks = blocks or {}
        self._found: dict[Hashable, Split] = {}

    def with_shared_experts(self, experts: ExpertParallel | None) -> Sharing:
        """The sharing for layers whose routed experts a world shares. Other products are split as before."""
        if experts is None:
            return self
        found = copy(self)
        found.experts = experts
        found.slices = Sharing(self.cfg, self.ops, self.dtype, self.device, experts.world.peers)
        return found

    def of_layer(self, index: int) -> Sharing:
        """The sharing for decoder layer `index`. NextN module k is layer num_hidden_layers + k."""
        found = copy(self)
        found.block = self._blocks.get(index, 0)
        return found

    def matrix(self, *shape: int) -> Weight:
        """An uninitialised weight of a product, in e4m3 blocks if the layer's are."""
        return Fp8Matrix.empty(shape, self.block, self.device) if self.block else self.empty(*shape)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised plain weight."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def heads(self) -> Split:
        """The split of attention's heads. Raises ValueError if they cannot be split evenly."""
        cfg, size = self.cfg, self.group.size
        heads, width, hidden = cfg.num_attention_heads, cfg.qk_head_dim, cfg.hidden_size
        if not self._even(size):
            fitting = ", ".join(str(n) for n in range(1, heads + 1) if self._even(n))
            each = "" if cfg.gqa is None else f" and {cfg.num_key_value_heads} key-value heads"
            raise ValueError(
                f"--tp-size {size}: the model's {heads} attention heads{each} cannot be shared evenly among "
                f"{size} ranks; --tp-size can be {fitting}"
            )
        split = Split(self.group, bounds(heads, size, heads // size))

        def same() -> bool:
            queries = [range(p.start * width, p.stop * width) for p in split.parts]
            if cfg.gqa is not None:  # one product computes the queries and all keys and values
                n_out = (heads + 2 * cfg.num_key_value_heads) * width
                others = range(heads * width, n_out)
                return self._same(n_out, hidden, [(*part, *others) for part in queries])
            if cfg.q_lora_rank:
                fit = self._same(heads * width, cfg.q_lora_rank, queries)
            else:  # one product computes the queries and the latent
                n_out = heads * width + cfg.latent_dim
                latent = range(heads * width, n_out)
                fit = self._same(n_out, hidden, [(*part, *latent) for part in queries])
            return fit and heads_separable(
                self.ops, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim, cfg.kv_lora_rank,
                split.parts, self.dtype, self.device,
            )  # fmt: skip

        return self._agreed("heads", split, same)

    def _even(self, size: int) -> bool:
        """Whether `size` ranks get the same number of heads, and each rank those of whole key-value heads, or
        of a part of one."""
        heads = self.cfg.num_attention_heads
        if heads % size:
            return False
        own, each = heads // size, heads // self.cfg.num_key_value_heads
        return self.cfg.gqa is None or own % each == 0 or each % own == 0

    def hidden(self) -> Split:
        """The split of `out` and of every `down`."""
        cfg = self.cfg
        split = Split.even(self.group, cfg.hidden_size)
        widths = {cfg.num_attention_heads * cfg.v_head_dim, cfg.intermediate_size}
        if cfg.n_routed_experts:
            widths |= {cfg.moe_intermediate_size * n for n in (1, cfg.n_shared_experts or 1)}

        def same() -> bool:
            return all(self._same(cfg.hidden_size, n_in, split.parts) for n_in in sorted(widths))

        return self._agreed("hidden", split, same)

    def inner(self, n: int) -> Split:
        """The split of a `gate_up` with n inner columns."""
        split = Split.even(self.group, n)
        parts = [(*part, *(n + i for i in part)) for part in split.parts]
        return self._agreed(("inner", n), split, lambda: self._same(2 * n, self.cfg.hidden_size, parts))

    def vocabulary(self, draft_tokens: Sequence[int] | None) -> Split:
        """The split of the head, and of its rows for `draft_tokens`."""
        cfg = self.cfg
        split = Split.even(self.group, cfg.vocab_size)

        def same() -> bool:
            fit = self._same(cfg.vocab_size, cfg.hidden_size, split.parts)
            if draft_tokens is None or not fit:
                return fit
            parts = [[i for i, token in enumerate(draft_tokens) if token in part] for part in split.parts]
            return self._same(len(draft_tokens), cfg.hidden_size, parts)

        return self._agreed("vocabulary", split, same)

    def rows(self, shapes: Mapping[str, tuple[int, ...]], vocabulary: Split) -> dict[str, range]:
        """Checkpoint name -> this rank's rows, for split tensors. shapes: of the checkpoint's tensors."""
        cfg, names, heads, hidden = self.cfg, self.cfg.names, self.heads(), self.hidden()
        queries = heads.times(cfg.qk_head_dim)
        splits = {names.q_proj: queries, names.out: hidden, names.down: hidden, names.head: vocabulary}
        if cfg.gqa is not None:
            splits |= {names.q_bias: queries, names.out_bias: hidden}
        else:
            splits[names.q_up] = queries
            splits[names.kv_up] = heads.times(cfg.qk_nope_head_dim + cfg.v_head_dim)
        found = {}
        for name, shape in shapes.items():
            if name.endswith((names.gate, names.up)):
                found[name] = self.inner(shape[0]).own
            for end, split in splits.items():
                if name.endswith(end):
                    found[name] = split.own
        return found

    def _same(self, n_out: int, n_in: int, parts: Sequence[Sequence[int]]) -> bool:
        return outputs_separable(self.ops, n_out, n_in, parts, self.dtype, self.device)

    def _agreed(self, key: Hashable, split: Split, same: Callable[[], bool]) -> Split:
        """The split; a split that gives every rank all columns, if a rank finds that parts would have other
        bits. A collective of the group."""
        size = self.group.size
        if size == 1 or self.ops.exact_columns:
            return split
        if key not in self._found:
            votes = torch.zeros(1, size, dtype=torch.uint8, device=self.device)
            votes[:, self.group.rank] = same()
            self.group.gather(votes, range(size + 1))
            self._found[key] = split if votes.all() else Split.not_split(split.n)
        return self._found[key]
