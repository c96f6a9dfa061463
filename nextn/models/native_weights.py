"""A model's weights for the native kernels: embedding, heads, layers, and NextN modules. The weights of
attention are in `native_mla` and `native_gqa`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nextn.distributed.expert_share import ExpertShare, ExpertTable
from nextn.families.config import ModelConfig
from nextn.layers.mlp import routing_of
from nextn.models.native_gqa import grouped_attention
from nextn.models.native_mla import latent_attention
from nextn.models.native_panels import NativePanels, copy_to, nothing, part_of, rows_of
from nextn.ops.cpu.interface import BF16, F32, INT8, PANEL, FeedForward, Layer, NextN
from nextn.ops.cpu.weights import PackedWeight, padded
from nextn.ops.stored import W8A16, Format, Stored
from nextn.ops.widen import widened


@dataclass(frozen=True)
class Drafting:
    """How NextN modules make their guesses. These options change no text: guesses are verified.

    int8: the modules' matrices and a copy of the head are in int8. A draft reads half the bytes.
    tokens: ids that may be drafted, in any order. The copy of the head has rows for these ids only.
    """

    int8: bool = False
    tokens: tuple[int, ...] | None = None


class NativeWeights(NativePanels):
    """All weights of one rank. quantize: for INT8 and for INT4, the matrices of NextN layers are converted to
    INT8, because a drafter in 4 bits is wrong too often."""

    def __init__(
        self,
        cfg: ModelConfig,
        nextn_layers: int,
        quantize: Format | None,
        stored: Mapping[str, Format] | None = None,
        drafting: Drafting = Drafting(),
        rank: int = 0,
        size: int = 1,
        share: ExpertShare | None = None,
        way: Callable[[int], int] = lambda kind: 0,
    ) -> None:
        """Raises ValueError if the model's products have too few outputs for the number of ranks."""
        check_ranks(cfg, size, share)
        super().__init__(cfg, quantize, stored, rank, size, share, way)
        self.tables: dict[int, ExpertTable] = {}  # by layer, if ranks share the experts
        self.chosen: dict[int, np.ndarray] = {}  # by layer: how often rows chose each expert; kernels add
        hidden, vocab = cfg.hidden_size, cfg.vocab_size
        self.embedding = torch.zeros(vocab, hidden, dtype=torch.bfloat16)
        own = self.part(vocab, PANEL)
        names = cfg.names
        self._head_name = names.embedding if cfg.tie_word_embeddings else names.head
        head = self.matrix(len(own), hidden, (self._head_name,), kind=BF16)
        self.head = head.struct
        self._places[names.embedding] = partial(copy_to, self.embedding)
        self._heads: list[Callable[..., None]] = [rows_of(head, own)]
        if cfg.tie_word_embeddings:
            self._places[names.embedding] = self._place_tied
        else:
            # A list of tokens to draft may need any row of the head.
            self.take(names.head, self._place_heads, own if drafting.tokens is None else None)
        self.norm = self.vector(names.norm, hidden)
        layers = [self._layer(i) for i in range(cfg.num_hidden_layers)]
        if nextn_layers:
            self._draft_head(drafting)
            self._int8_default = drafting.int8
            if quantize is not None:
                self._quantize = W8A16
        numbers = range(cfg.num_hidden_layers, cfg.num_hidden_layers + nextn_layers)
        layers += (self._layer(i) for i in numbers)
        self.nextn = (NextN * nextn_layers)(*(self._module(i) for i in numbers))
        self.layers = (Layer * len(layers))(*layers)

    def _module(self, index: int) -> NextN:
        """A NextN module without its decoder layer."""
        hidden, spec = self.cfg.hidden_size, self.cfg.mtp
        prefix = self.cfg.module_at(index - self.cfg.num_hidden_layers)
        name = prefix + spec.projection
        kind = INT8 if self._int8_default else BF16
        eh_proj = self.matrix(hidden, 2 * hidden, (name,) if spec.embedding_first else (), kind)

        def place(tensor: Tensor) -> None:  # the kernels' inputs have the embedding first
            eh_proj.place(tensor if spec.embedding_first else tensor.roll(hidden, 1))

        self._places[name] = place
        return NextN(
            enorm=self.vector(prefix + spec.embedding_norm, hidden),
            hnorm=self.vector(prefix + spec.hidden_norm, hidden),
            norm=self.vector(prefix + spec.output_norm, hidden),
            eh_proj=eh_proj.struct,
        )

    def _draft_head(self, drafting: Drafting) -> None:
        hidden, kind = self.cfg.hidden_size, INT8 if drafting.int8 else BF16
        self.draft_head, self.draft_tokens = self.head, drafting.tokens
        is_bf16 = self._head_name not in self.as_stored
        if (drafting.int8 and is_bf16) or drafting.tokens is not None:
            own = self.part(len(drafting.tokens or range(self.cfg.vocab_size)), PANEL)
            head = self.matrix(len(own), hidden, (self._head_name,), kind)
            self.draft_head = head.struct
            if drafting.tokens is None:
                self._heads.append(rows_of(head, own))
            else:
                ids = list(drafting.tokens[own.start : own.stop])
                self._heads.append(
                    lambda tensor: head.place(tensor.take(ids) if isinstance(tensor, Stored) else tensor[ids])
                )

    def read_past_caches(self) -> None:
        """Marks the target's weights as non-temporal: a step reads them once. It reads those of the drafter
        once for each draft. If both have the same head, csrc/heads.h decides for each step."""
        if self.nextn:
            self.draft_head = type(self.head).from_buffer_copy(self.draft_head)  # it may be the target's
        self.head.non_temporal = 1
        for layer in self.layers[: self.cfg.num_hidden_layers]:
            mlp = layer.mlp
            weights = (layer.down, layer.q_up, layer.key_up, layer.value_up, layer.out)
            for weight in (*weights, mlp.gate_up, mlp.down, mlp.shared_gate_up, mlp.shared_down):
                weight.non_temporal = 1

    @property
    def bytes(self) -> int:
        return self.embedding.numel() * 2 + sum(w.bytes for w in self.packed)

    def _place_heads(self, tensor: Tensor | Stored) -> None:
        for place in self._heads:
            place(tensor)

    def _place_tied(self, tensor: Tensor | Stored) -> None:
        plain = widened(tensor, torch.bfloat16) if isinstance(tensor, Stored) else tensor
        self.embedding.copy_(plain)
        self._place_heads(tensor)

    def _layer(self, index: int) -> Layer:
        cfg, names = self.cfg, self.cfg.names
        module = index - cfg.num_hidden_layers
        prefix = names.at(index) if module < 0 else cfg.module_at(module)
        layer = Layer(
            attention_norm=self.vector(prefix + names.attention_norm, cfg.hidden_size),
            mlp_norm=self.vector(prefix + names.mlp_norm, cfg.hidden_size),
        )
        if cfg.gqa is None:
            latent_attention(self, prefix, layer)
        else:
            grouped_attention(self, cfg.gqa, prefix, layer)
        columns, out_name = self.part(cfg.hidden_size, PANEL), prefix + names.out
        out = self.matrix(len(columns), cfg.num_attention_heads * cfg.v_head_dim, (out_name,))
        self.split(out_name, out, columns)
        layer.out = out.struct
        if cfg.is_moe(index):
            layer.mlp = self._moe(prefix, index)
        else:
            gate_up, down = self._mlp((prefix + names.mlp,), cfg.intermediate_size)
            layer.mlp.shared_gate_up, layer.mlp.shared_down = gate_up.struct, down.struct
        return layer

    def _mlp(
        self,
        prefixes: Sequence[str],
        inner: int,
        slices: tuple[int, int] | None = None,
        like: Sequence[str] | None = None,
    ) -> tuple[PackedWeight, PackedWeight]:
        """(gate and up interleaved, down) of the blocks with these prefixes, one after another. slices:
        (index, number) of this rank's slice of each block; None: (rank, size). like: the prefixes of all
        blocks that must have the same format, if there are more than these."""
        members, names = len(prefixes), self.cfg.names
        slices = slices or (self.rank, self.size)
        own, columns = part_of(inner, PANEL // 2, *slices), part_of(self.cfg.hidden_size, PANEL, *slices)
        like, sides = like or prefixes, (names.gate, names.up)
        ups = [p + side for p in like for side in sides]
        downs = [p + names.down for p in like]
        gate_up = self.matrix(2 * padded(len(own), 16), self.cfg.hidden_size, ups, members=members)
        down = self.matrix(len(columns), inner, downs, members=members)
        for i, prefix in enumerate(prefixes):
            for first, side in enumerate(sides):
                self.split(prefix + side, gate_up, own, member=i, first=first, interleave=2)
            self.split(prefix + names.down, down, columns, member=i)
        return gate_up, down

    def _moe(self, prefix: str, index: int) -> FeedForward:
        cfg, names = self.cfg, self.cfg.names
        experts = cfg.n_routed_experts
        router = self.matrix(experts, cfg.hidden_size, kind=F32)
        self._places[prefix + names.router] = router.place
        bias = torch.zeros(padded(experts, 16))
        self._plain.append(bias)
        if names.router_bias:
            self._places[prefix + names.router_bias] = partial(copy_to, bias[:experts])
        found = FeedForward(
            router=router.struct, bias=bias.data_ptr(), experts=experts, **routing_of(cfg)._asdict()
        )
        self.chosen[index] = np.zeros(experts, np.int64)
        found.counts = self.chosen[index].ctypes.data
        blocks = [prefix + names.expert_at(e) for e in range(experts)]
        if self.share is not None and index < cfg.num_hidden_layers:
            self._shared_experts(found, index, blocks)
        else:
            gate_up, down = self._mlp(blocks, cfg.moe_intermediate_size)
            found.gate_up, found.down = gate_up.struct, down.struct
        if cfg.n_shared_experts:
            gate_up, down = self._mlp(
                (prefix + names.shared_experts,), cfg.moe_intermediate_size * cfg.n_shared_experts
            )
            found.shared_gate_up, found.shared_down = gate_up.struct, down.struct
        return found

    def _shared_experts(self, to: FeedForward, index: int, blocks: Sequence[str]) -> None:
        """blocks: prefixes of all experts. This rank holds some of them, or replicas of some."""
        cfg, share = self.cfg, self.share
        assert share is not None
        held = [int(e) for e in share.held(index)]
        gate_up, down = self._mlp(
            [blocks[e] for e in held], cfg.moe_intermediate_size, (share.slice, share.slices), blocks
        )
        names = cfg.names
        for e in set(range(len(blocks))) - set(held):
            for name in (names.gate, names.up, names.down):
                self.take(blocks[e] + name, nothing, range(0))
        table = self.tables[index] = ExpertTable(share, index, gate_up, down)
        to.gate_up, to.down, to.own = gate_up.struct, down.struct, len(held)
        to.most_replicas, to.replicas = table.replicas.shape[1], table.replicas.ctypes.data
        to.replica_count = table.count.ctypes.data


def check_ranks(cfg: ModelConfig, size: int, share: ExpertShare | None = None) -> None:
    """Raises ValueError if a rank would have no outputs of a product, or only a part of a head. share: given
    if more ranks than these share the experts."""
    slices, asked = 1 if share is None else share.slices, f"--tp-size {size}"
    if share is not None and share.size > size:
        asked = f"--tp-size {share.size}, which is {size} for each group of --enable-dp-attention"
    if cfg.num_attention_heads % size:
        raise ValueError(f"{asked}: the model's {cfg.num_attention_heads} heads cannot be divided by it")
    shared = cfg.moe_intermediate_size * (cfg.n_shared_experts or 0)
    dense = any(not cfg.is_moe(i) for i in range(cfg.num_hidden_layers + cfg.num_nextn_predict_layers))
    sizes = {
        "hidden_size": (cfg.hidden_size, PANEL),
        "vocab_size": (cfg.vocab_size, PANEL),
        "intermediate_size": (cfg.intermediate_size if dense else 0, PANEL // 2),
        "moe_intermediate_size": (cfg.moe_intermediate_size if cfg.n_routed_experts else 0, PANEL // 2),
        "moe_intermediate_size of all shared experts": (shared, PANEL // 2),
    }
    for name, (n, unit) in sizes.items():
        parts = max(size, slices) if name in ("hidden_size", "moe_intermediate_size") else size
        if n and -(-n // unit) < parts:
            option = asked if parts == size else f"{slices} ranks share each expert (raise --ep-size)"
            raise ValueError(
                f"{option}: {name} is {n}, which the native kernels cut into {-(-n // unit)} parts "
                f"of {unit} at most"
            )
