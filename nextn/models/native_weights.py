"""DeepSeek-V3's weights for the native kernels: which tensor of a checkpoint goes where in which panel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nextn.distributed.expert_share import ExpertShare, ExpertTable
from nextn.distributed.group import bounds
from nextn.families.config import ModelConfig
from nextn.ops.cpu.coded import kind_of
from nextn.ops.cpu.library import BF16, E4M3, F32, INT8, KINDS, PANEL, WAYS, FeedForward, Layer, NextN
from nextn.ops.cpu.weights import Arena, PackedWeight, norm_weight, padded
from nextn.ops.stored import FP8, INT4, W8A16, Format, Stored
from nextn.ops.widen import widened


@dataclass(frozen=True)
class Drafting:
    """How NextN modules make their guesses. Nothing here changes a text: guesses are verified.

    int8: their matrices, and a copy of the head, in int8: half the bytes of a draft.
    tokens: ids that may be drafted, in any order: the copy of the head has rows for no others.
    """

    int8: bool = False
    tokens: tuple[int, ...] | None = None


class NativeWeights:
    """Zeros until `place` has been called for every tensor.

    quantize: what the layers' matrices are converted to, INT8 or INT4; of NextN layers to INT8 in either
    case, as a drafter in 4 bits is wrong too often. stored: names that the checkpoint stores in e4m3 blocks
    or in a few bits. A matrix whose parts are all stored alike stays so, and those names are in `as_stored`:
    they are wanted as they are. One in a few bits is not converted.
    """

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
        """rank, size: of the ranks that compute a step together; this one holds its own outputs of each
        product. share: of the target's routed experts, where more ranks share them. way: of the products of a
        kind, see `nextn.ops.cpu.ways`. Raises ValueError where there are too few for so many ranks."""
        check_ranks(cfg, size, share)
        self.rank, self.size, self.share = rank, size, share
        self.tables: dict[int, ExpertTable] = {}  # by layer, where experts are shared
        self.chosen: dict[int, np.ndarray] = {}  # by layer: how often rows chose each expert, counted up
        self.cfg, self._stored, self._quantize = cfg, stored or {}, quantize
        self._coarse = False  # what is not stored in one byte already goes into int8
        self._way = way
        self.as_stored: frozenset[str] = frozenset()
        self._places: dict[str, Callable[..., None]] = {}
        self.rows: dict[str, range] = {}  # by name: those of its rows that `place` wants
        self._arena = Arena()
        self.packed: list[PackedWeight] = []
        self._plain: list[Tensor] = []  # norms and biases: kept, for the kernels hold pointers to them
        hidden, vocab = cfg.hidden_size, cfg.vocab_size
        self.embedding = torch.zeros(vocab, hidden, dtype=torch.bfloat16)
        own = self.part(vocab, PANEL)
        names = cfg.names
        self._head_name = names.embedding if cfg.tie_word_embeddings else names.head
        head = self._matrix(len(own), hidden, (self._head_name,), kind=BF16)
        self.head = head.struct
        self._places[names.embedding] = partial(_copy, self.embedding)
        self._heads: list[Callable[..., None]] = [_rows(head, own)]
        if cfg.tie_word_embeddings:
            self._places[names.embedding] = self._place_tied
        else:
            # Of the head, a list of tokens to draft may want any rows.
            self._take(names.head, self._place_heads, own if drafting.tokens is None else None)
        self.norm = self._vector(names.norm, hidden)
        layers = [self._layer(i) for i in range(cfg.num_hidden_layers)]
        if nextn_layers:
            self._draft_head(drafting)
            self._coarse = drafting.int8
            if quantize is not None:
                self._quantize = W8A16
        numbers = range(cfg.num_hidden_layers, cfg.num_hidden_layers + nextn_layers)
        layers += (self._layer(i) for i in numbers)
        self.nextn = (NextN * nextn_layers)(*(self._module(i) for i in numbers))
        self.layers = (Layer * len(layers))(*layers)

    def _module(self, index: int) -> NextN:
        """A NextN module but for its decoder layer."""
        hidden, spec = self.cfg.hidden_size, self.cfg.mtp
        prefix = spec.at(index)
        name = prefix + spec.projection
        kind = INT8 if self._coarse else BF16
        eh_proj = self._matrix(hidden, 2 * hidden, (name,) if spec.embedding_first else (), kind)

        def place(tensor: Tensor) -> None:  # the kernels have the embedding first
            eh_proj.place(tensor if spec.embedding_first else tensor.roll(hidden, 1))

        self._places[name] = place
        return NextN(
            enorm=self._vector(prefix + spec.embedding_norm, hidden),
            hnorm=self._vector(prefix + spec.hidden_norm, hidden),
            norm=self._vector(prefix + spec.output_norm, hidden),
            eh_proj=eh_proj.struct,
        )

    def _draft_head(self, drafting: Drafting) -> None:
        hidden, kind = self.cfg.hidden_size, INT8 if drafting.int8 else BF16
        self.draft_head, self.draft_tokens = self.head, drafting.tokens
        is_bf16 = self._head_name not in self.as_stored
        if (drafting.int8 and is_bf16) or drafting.tokens is not None:
            own = self.part(len(drafting.tokens or range(self.cfg.vocab_size)), PANEL)
            head = self._matrix(len(own), hidden, (self._head_name,), kind)
            self.draft_head = head.struct
            if drafting.tokens is None:
                self._heads.append(_rows(head, own))
            else:
                ids = list(drafting.tokens[own.start : own.stop])
                self._heads.append(
                    lambda tensor: head.place(tensor.take(ids) if isinstance(tensor, Stored) else tensor[ids])
                )

    def part(self, n: int, unit: int) -> range:
        """Those of n outputs that this rank computes."""
        return _part(n, unit, self.rank, self.size)

    @property
    def bytes(self) -> int:
        return self.embedding.numel() * 2 + sum(w.bytes for w in self.packed)

    def place(self, name: str, tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
        """Takes over one tensor, whole or those rows of it that `rows` names. scale: of e4m3 blocks, if it is
        in `as_stored`, a row of them for each output."""
        if scale is None:
            self._places[name](tensor)
        else:
            self._places[name](tensor, scale=scale)

    @property
    def ways(self) -> dict[str, str]:
        """Formats that are not multiplied in the level's own way: by name, in which."""
        chosen = {int(packed.kind): int(packed.struct.way) for packed in self.packed}
        return {KINDS[kind]: WAYS[way] for kind, way in sorted(chosen.items()) if way}

    def _matrix(
        self, n_out: int, n_in: int, names: Collection[str] = (), kind: int | None = None, members: int = 1
    ) -> PackedWeight:
        """names: the checkpoint's, of all that goes into it. kind: unless it is stored in a few bits."""
        format = self._common_format(names)
        few = None if format is None or format.name == FP8 else kind_of(format, n_in)
        block = 0
        if format is not None and few is not None:
            kind, block = few, format.group
            self.as_stored |= frozenset(names)
        elif kind is None:
            kind, block = self._layer_kind(n_in, format)
            if kind == E4M3:
                self.as_stored |= frozenset(names)
        packed = PackedWeight(n_out, n_in, kind, members, block, self._arena)
        packed.struct.way = self._way(kind)
        self.packed.append(packed)
        return packed

    def _common_format(self, names: Collection[str]) -> Format | None:
        """How all of these are stored, if that is one way."""
        found = {self._stored.get(name) for name in names}
        return found.pop() if len(found) == 1 else None

    def _few_bits(self, name: str) -> bool:
        """Is this matrix stored in a few bits, or to be converted to 4?"""
        format = self._stored.get(name)
        made = self._quantize
        return (format is not None and format.name != FP8) or (made is not None and made.name == INT4)

    def _layer_kind(self, n_in: int, format: Format | None) -> tuple[int, int]:
        """(kind, block) of a layer's matrix that is not stored in a few bits."""
        if self._quantize is not None:
            made = kind_of(self._quantize, n_in)
            return (INT8, 0) if made is None else (made, self._quantize.group)
        if format is not None and format.name == FP8 and format.group % 2 == 0:
            return E4M3, format.group  # the kernels read inputs in pairs: no pair may lie in two blocks
        return (INT8, 0) if self._coarse else (BF16, 0)

    def _take(self, name: str, place: Callable[..., None], rows: range | None) -> None:
        """rows: those of the tensor that the rank takes; None: it needs to see all. A tensor may go to
        several places, all of which take the same rows."""
        before = self._places.get(name)
        self._places[name] = place if before is None else _both(before, place)
        if rows is not None and (self.size > 1 or self.share is not None):
            self.rows[name] = rows

    def _split(self, name: str, weight: PackedWeight, own: range, **where: Any) -> None:
        """Of this tensor the rank takes these rows."""
        self._take(name, _rows(weight, own, **where), own)

    def _vector(self, name: str, n: int) -> int:
        """Address of a norm's weight."""
        weight = norm_weight(n)
        self._plain.append(weight)
        self._places[name] = partial(_copy, weight[:n])
        return weight.data_ptr()

    def _place_heads(self, tensor: Tensor | Stored) -> None:
        for place in self._heads:
            place(tensor)

    def _place_tied(self, tensor: Tensor | Stored) -> None:
        plain = widened(tensor, torch.bfloat16) if isinstance(tensor, Stored) else tensor
        self.embedding.copy_(plain)
        self._place_heads(tensor)

    def _layer(self, index: int) -> Layer:
        cfg = self.cfg
        names = cfg.names
        prefix = names.at(index) if index < cfg.num_hidden_layers else cfg.mtp.at(index)
        heads, rank, value = cfg.num_attention_heads, cfg.kv_lora_rank, cfg.v_head_dim
        own = self.part(heads, 1)
        own_queries = range(own.start * cfg.qk_head_dim, own.stop * cfg.qk_head_dim)
        q_in = cfg.q_lora_rank or len(own_queries)
        q_down = prefix + (names.q_down if cfg.q_lora_rank else names.q_proj)
        kv_down, out_name = prefix + names.kv_down, prefix + names.out
        down = self._matrix(q_in + cfg.latent_dim, cfg.hidden_size, (q_down, kv_down))
        if cfg.q_lora_rank:
            self._places[q_down] = down.place
        else:
            self._split(q_down, down, own_queries)
        self._places[kv_down] = partial(down.place, first=q_in)
        columns = self.part(cfg.hidden_size, PANEL)
        out = self._matrix(len(columns), heads * value, (out_name,))
        self._split(out_name, out, columns)
        # The halves of kv_up are read per head, one of them transposed: the file's blocks do not fit them.
        kind = INT8 if self._few_bits(prefix + names.kv_up) else BF16
        key_up = self._matrix(rank, cfg.qk_nope_head_dim, kind=kind, members=len(own))
        value_up = self._matrix(value, rank, kind=kind, members=len(own))
        each, place = cfg.qk_nope_head_dim + value, partial(self._place_kv_up, key_up, value_up, own)
        self._take(prefix + names.kv_up, place, range(own.start * each, own.stop * each))
        layer = Layer(
            attention_norm=self._vector(prefix + names.attention_norm, cfg.hidden_size),
            down=down.struct,
            kv_norm=self._vector(prefix + names.kv_norm, rank),
            key_up=key_up.struct,
            value_up=value_up.struct,
            out=out.struct,
            mlp_norm=self._vector(prefix + names.mlp_norm, cfg.hidden_size),
            mlp=self._moe(prefix, index) if cfg.is_moe(index) else FeedForward(),
        )
        if cfg.q_lora_rank:
            name = prefix + names.q_up
            q_up = self._matrix(len(own_queries), cfg.q_lora_rank, (name,))
            self._split(name, q_up, own_queries)
            layer.q_norm = self._vector(prefix + names.q_norm, cfg.q_lora_rank)
            layer.q_up = q_up.struct
        if not cfg.is_moe(index):
            gate_up, dense_down = self._mlp((prefix + names.mlp,), cfg.intermediate_size)
            layer.mlp.shared_gate_up, layer.mlp.shared_down = gate_up.struct, dense_down.struct
        return layer

    def _place_kv_up(self, key_up: PackedWeight, value_up: PackedWeight, own: range, tensor: Tensor) -> None:
        nope, value = self.cfg.qk_nope_head_dim, self.cfg.v_head_dim
        both = _own(tensor.view(-1, nope + value, self.cfg.kv_lora_rank), own)
        for head, one in enumerate(both):
            key_up.place(one[:nope], member=head, transposed=True)
            value_up.place(one[nope:], member=head)

    def _mlp(
        self,
        prefixes: Sequence[str],
        inner: int,
        slices: tuple[int, int] | None = None,
        like: Sequence[str] | None = None,
    ) -> tuple[PackedWeight, PackedWeight]:
        """(gate and up interleaved, down) of the blocks with these prefixes, one after another. slices: which
        of how many slices of each this is; None: as of everything else. like: all blocks that are to have the
        same format, if they are more."""
        members, names = len(prefixes), self.cfg.names
        slices = slices or (self.rank, self.size)
        own, columns = _part(inner, PANEL // 2, *slices), _part(self.cfg.hidden_size, PANEL, *slices)
        like, sides = like or prefixes, (names.gate, names.up)
        ups = [p + side for p in like for side in sides]
        downs = [p + names.down for p in like]
        gate_up = self._matrix(2 * padded(len(own), 16), self.cfg.hidden_size, ups, members=members)
        down = self._matrix(len(columns), inner, downs, members=members)
        for i, prefix in enumerate(prefixes):
            for first, side in enumerate(sides):
                self._split(prefix + side, gate_up, own, member=i, first=first, interleave=2)
            self._split(prefix + names.down, down, columns, member=i)
        return gate_up, down

    def _moe(self, prefix: str, index: int) -> FeedForward:
        cfg, names = self.cfg, self.cfg.names
        experts = cfg.n_routed_experts
        router = self._matrix(experts, cfg.hidden_size, kind=F32)
        self._places[prefix + names.router] = router.place
        bias = torch.zeros(padded(experts, 16))
        self._plain.append(bias)
        self._places[prefix + names.router_bias] = partial(_copy, bias[:experts])
        found = FeedForward(
            router=router.struct, bias=bias.data_ptr(), experts=experts, groups=cfg.n_group,
            top_groups=cfg.topk_group, top_k=cfg.num_experts_per_tok, normalize=cfg.norm_topk_prob,
            scale=cfg.routed_scaling_factor,
        )  # fmt: skip
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
        """blocks: prefixes of all experts, of which this rank holds some, or replicas of some."""
        cfg, share = self.cfg, self.share
        assert share is not None
        held = [int(e) for e in share.held(index)]
        gate_up, down = self._mlp(
            [blocks[e] for e in held], cfg.moe_intermediate_size, (share.slice, share.slices), blocks
        )
        names = cfg.names
        for e in set(range(len(blocks))) - set(held):
            for name in (names.gate, names.up, names.down):
                self._take(blocks[e] + name, _nothing, range(0))
        table = self.tables[index] = ExpertTable(share, index, gate_up, down)
        to.gate_up, to.down, to.own = gate_up.struct, down.struct, len(held)
        to.most_replicas, to.replicas = table.replicas.shape[1], table.replicas.ctypes.data
        to.replica_count = table.count.ctypes.data


def check_ranks(cfg: ModelConfig, size: int, share: ExpertShare | None = None) -> None:
    """Raises ValueError where some rank would have no outputs of a product, or a part of a head. share: where
    more ranks than these share the experts."""
    slices, asked = 1 if share is None else share.slices, f"--tp-size {size}"
    if share is not None and share.size > size:
        asked = f"--tp-size {share.size}, which is {size} for each group of --enable-dp-attention"
    if cfg.num_attention_heads % size:
        raise ValueError(f"{asked}: the model's {cfg.num_attention_heads} heads cannot be divided by it")
    shared = cfg.moe_intermediate_size * (cfg.n_shared_experts or 0)
    dense = any(not cfg.is_moe(i) for i in range(cfg.num_hidden_layers))
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


def _rows(weight: PackedWeight, rows: range, **where: Any) -> Callable[..., None]:
    """Places these rows of a tensor."""

    def place(tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
        if isinstance(tensor, Stored):
            weight.place(tensor if len(tensor) == len(rows) else tensor.rows(rows), **where)
        else:
            weight.place(_own(tensor, rows), scale=None if scale is None else _own(scale, rows), **where)

    return place


def _own(tensor: Tensor, rows: range) -> Tensor:
    """These of a whole tensor's rows; a tensor of just as many is those already."""
    return tensor if len(tensor) == len(rows) else tensor[rows.start : rows.stop]


def _part(n: int, unit: int, rank: int, size: int) -> range:
    begin, end = bounds(n, size, unit)[rank : rank + 2]
    return range(begin, end)


def _both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def place(*args: Any, **kwargs: Any) -> None:
        first(*args, **kwargs)
        second(*args, **kwargs)

    return place


def _nothing(tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
    pass


def _copy(to: Tensor, tensor: Tensor) -> None:
    to.copy_(tensor)
