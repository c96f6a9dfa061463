"""The model of `nextn.models.torch_model` on the native CPU kernels, for all families. One native call runs a
pass, or a whole step of plain requests (`plain_step`).

The residual stream, norms, router and softmax are f32. Products and attention read bf16 and sum in f32. A
row has the same bits in every batch (csrc/linear.h, csrc/attention.h).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextn.cutoff import EDGES
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.ranks import Ranks
from nextn.draft import Draft
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import PackedBatch, Span
from nextn.layers.mla import LATENT_NORM_EPS
from nextn.layers.rotary import rotary_tables, softmax_scale
from nextn.models import native_step
from nextn.models.base import ChainsRequest, layout_of
from nextn.models.native_weights import Drafting, NativeWeights
from nextn.models.one_call import PlainResult, PlainStep
from nextn.ops.base import DrawParams
from nextn.ops.cpu.draw import packed
from nextn.ops.cpu.heads import ALIGN
from nextn.ops.cpu.interface import CUTOFF, Model, NxBatch, NxChains
from nextn.ops.cpu.library import library
from nextn.ops.stored import Format

WIDEST = {  # buffers in csrc/forward.h and csrc/moe.h
    "hidden_size": 16384, "q_lora_rank": 8192, "kv_lora_rank": 1024, "n_routed_experts": 1024
}  # fmt: skip
WIDEST_HEAD = 1024  # with grouped-query attention


def native_batch(batch: PackedBatch) -> NxBatch:
    """The batch as the kernels read it. It points into the arrays of `batch`, which must outlive it."""
    return NxBatch(
        batch.rows, len(batch.starts), batch.token_ids.buffer_info()[0], batch.starts.buffer_info()[0],
        batch.page_at.buffer_info()[0], batch.cu_rows.buffer_info()[0],
        batch.cu_paths and batch.cu_paths.buffer_info()[0], batch.table.buffer_info()[0],
    )  # fmt: skip


class Buffer(NamedTuple):
    """A buffer for results. tensor: [rows, width] f32. at: its address."""

    tensor: Tensor
    rows: int
    at: int


class NativeModel:
    """Call `place` with every tensor of the checkpoint before the first step. level: instruction set of the
    kernels; None: the best one. Raises ValueError for a model that is wider than the kernels' buffers.
    """

    dtype = torch.bfloat16  # of the cache
    device = torch.device("cpu")
    row_align = 1

    def __init__(
        self,
        cfg: ModelConfig,
        nextn_layers: int,
        threads: int,
        quantize: Format | None = None,
        stored: Mapping[str, Format] | None = None,
        drafting: Drafting = Drafting(),  # noqa: B008
        level: str | None = None,
        ranks: Ranks | None = None,
        world: ExpertWorld | None = None,
        way: Callable[[int], int] = lambda kind: 0,
        fp8_rows: bool = False,
        non_temporal: Callable[[int], bool] = lambda size: False,
    ) -> None:
        """ranks: the ranks that compute every step together. world: these ranks and others, if they share the
        target's experts; before each `forward`, all call its `step`. way: how the products of each kind of
        weights are computed (`nextn.ops.cpu.ways`). fp8_rows: routed experts read rows rounded to e4m3.
        non_temporal: size of all weights in bytes -> whether they are read past the outer caches
        (`nextn.ops.cpu.reading`)."""
        for name, most in WIDEST.items():
            if (getattr(cfg, name) or 0) > most:
                raise ValueError(f"{name} is {getattr(cfg, name)}: the native kernels take at most {most}")
        if cfg.gqa is not None and cfg.gqa.head_dim > WIDEST_HEAD:
            raise ValueError(f"head_dim is {cfg.gqa.head_dim}: the native kernels take at most {WIDEST_HEAD}")
        self.config, self.threads, self.nextn_layers = cfg, threads, nextn_layers
        self._kernels = library(level)
        self.cache_layout = layout_of(cfg, ALIGN)
        rank, size = (ranks.rank, ranks.size) if ranks else (0, 1)
        share = None if world is None else world.share
        self.weights = w = NativeWeights(
            cfg, nextn_layers, quantize, stored, drafting, rank, size, share, way
        )
        self.place, self._ranks, self.world = w.place, ranks, world
        for layer in w.layers:
            layer.mlp.fp8_rows = fp8_rows
        if non_temporal(w.bytes):
            w.read_past_caches()
        heads = w.part(cfg.num_attention_heads, 1)
        self._tables = rotary_tables(cfg, cfg.max_position_embeddings, self.device)
        self._model = Model(
            hidden=cfg.hidden_size, heads=len(heads), nope=cfg.qk_nope_head_dim,
            rope=cfg.qk_rope_head_dim, rank=cfg.kv_lora_rank, value=cfg.v_head_dim,
            q_in=cfg.q_lora_rank or len(heads) * cfg.qk_head_dim, first_head=heads.start,
            kv_heads=0 if cfg.gqa is None else cfg.gqa.num_key_value_heads,
            all_heads=cfg.num_attention_heads, vocab=cfg.vocab_size, layers=cfg.num_hidden_layers,
            eps=cfg.rms_norm_eps, latent_eps=LATENT_NORM_EPS, scale=softmax_scale(cfg),
            embedding=w.embedding.data_ptr(), cosine=self._tables[0].data_ptr(),
            sine=self._tables[1].data_ptr(), layer=w.layers, norm=w.norm, head=w.head,
            width=self.cache_layout.width,
        )  # fmt: skip
        if nextn_layers:
            self._model.nextn, self._model.draft_head = w.nextn, w.draft_head
            self._model.masks_first = cfg.mtp.masks_first
            self._model.draft_vocab = len(drafting.tokens or range(cfg.vocab_size))
            if drafting.tokens is not None:
                self._draft_ids = array("i", drafting.tokens)
                self._model.draft_ids = self._draft_ids.buffer_info()[0]
        self._engine: Any = None
        self._pool: KVPool | None = None
        self._buffers: dict[str, Buffer] = {}
        self._step_buffers = native_step.StepBuffers()
        self.pack_request = native_step.pack_request

    @property
    def weight_bytes(self) -> int:
        return self.weights.bytes

    def batch(self, spans: Sequence[Span], page_size: int) -> PackedBatch:
        return PackedBatch(spans, page_size)

    def forward(self, batch: PackedBatch, pool: KVPool) -> Tensor:
        most = self.world or self._ranks
        assert most is None or batch.rows <= most.most_rows, "more than their arrays hold"
        out = self._buffer("forward", batch.rows, self.config.hidden_size)
        self._call(self._kernels.nx_forward, self._on(pool), native_batch(batch), out.data_ptr())
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits(self._kernels.nx_logits, hidden)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        return self._logits(self._kernels.nx_draft_logits, hidden)

    def _logits(self, head: Callable[..., int], hidden: Tensor) -> Tensor:
        assert self._engine, "hidden states come from a step"
        rows = hidden.contiguous()
        out = self._buffer("logits", rows.shape[0], self.config.vocab_size)
        self._call(head, self._engine, rows.data_ptr(), rows.shape[0], out.shape[1], out.data_ptr())
        return out

    def choices(self, hidden: Tensor, whole: int, draws: Sequence[DrawParams]) -> tuple[Tensor, list[int]]:
        assert self._engine, "hidden states come from a step"
        rows = hidden.contiguous()
        out = self._buffer("logits", whole, self.config.vocab_size)
        tokens = array("i", bytes(4 * (rows.shape[0] - whole)))
        assert sum([d.rows for d in draws]) == len(tokens)
        self._call(
            self._kernels.nx_choices, self._engine, rows.data_ptr(), rows.shape[0], out.shape[1], whole,
            out.data_ptr(), packed(draws), tokens.buffer_info()[0],
        )  # fmt: skip
        return out, tokens.tolist()

    def draft(self, batch: PackedBatch, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        assert 0 <= layer < self.nextn_layers, layer
        rows = hidden.contiguous()
        out = self._buffer("draft", *rows.shape)  # may contain `rows`: the kernels read before they write
        engine, states = self._on(pool), rows.data_ptr()
        self._call(self._kernels.nx_draft, engine, native_batch(batch), states, layer, out.data_ptr())
        return out

    def draft_chains(self, request: ChainsRequest, pool: KVPool) -> tuple[list[Draft], Sequence[int]]:
        batch, hidden, rows, chains, cutoff = request
        assert len(rows) == batch.rows
        count, num_steps = len(chains), array("i", [c.num_steps for c in chains])
        max_steps = max(num_steps, default=0)
        scores = self._buffer("logits", count, self.config.vocab_size)
        states, spans, cut = (
            array("i", rows),
            array("i", [c.span for c in chains]),
            bytes(c.cut for c in chains),
        )
        tokens, made, kept = (array("i", bytes(4 * n)) for n in (max_steps * count, count, count))
        passes, bins = array("i", bytes(4 * max_steps)), array("B", bytes(max_steps * count))
        struct = NxChains(
            states.buffer_info()[0], spans.buffer_info()[0], packed([c.draw for c in chains]),
            num_steps.buffer_info()[0], count, max_steps, scores.shape[1], scores.data_ptr(),
            None if cutoff is None else CUTOFF.pack(*EDGES, *cutoff.numbers), cut,
            *(out.buffer_info()[0] for out in (tokens, bins, made, kept, passes)),
        )  # fmt: skip
        self._call(self._kernels.nx_chains, self._on(pool), native_batch(batch), hidden.data_ptr(), 0, struct)
        found, guess_bins = tokens.tolist(), bins.tobytes()
        drafts = [
            Draft(found[at : at + k], bins=guess_bins[at : at + m]) if c.cut else Draft(found[at : at + k])
            for at, k, m, c in zip(
                range(0, max_steps * count, max_steps or 1), kept, made, chains, strict=True
            )
        ]
        return drafts, passes[1 : passes.index(0)] if 0 in passes else passes[1:]

    def plain_step(self, step: PlainStep, pool: KVPool) -> PlainResult:
        assert self.world is None, "others take part in every pass"
        assert self._ranks is None or len(step.tokens) <= self._ranks.most_rows, "more than their arrays hold"
        cfg, buffers = self.config, self._step_buffers
        hidden = self._sized("forward", len(step.tokens), cfg.hidden_size).at
        most = max(step.spans, step.choices) if self._ranks is None else 0
        packed = buffers.packed(step, cfg.vocab_size, hidden, self._sized("logits", most, cfg.vocab_size).at)
        table = step.table.buffer_info()[0]
        self._call(self._kernels.nx_step, self._on(pool), packed, step.requests, table)
        return buffers.read(step)

    def states(self, rows: int) -> Tensor:
        return self._buffer("forward", rows, self.config.hidden_size)

    def states_at(self) -> tuple[int, int]:
        return self._buffers["forward"].at, 4 * self.config.hidden_size

    def expert_counts(self) -> tuple[np.ndarray, np.ndarray]:
        first, none = self.config.num_hidden_layers, np.zeros((0, self.config.n_routed_experts), np.int64)
        own = [counts for layer, counts in self.weights.chosen.items() if layer < first]
        nextn = [counts for layer, counts in self.weights.chosen.items() if layer >= first]
        return np.stack(own) if own else none, np.stack(nextn) if nextn else none

    def expert_bytes_read(self) -> int:
        """Bytes of the experts read since the last call. Each pass of a layer counts an expert once."""
        return int(self._kernels.nx_engine_expert_bytes(self._engine)) if self._engine else 0

    def _call(self, function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments):
            peers = self.world or self._ranks
            assert peers is not None
            raise peers.gone()

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        """A buffer [rows, width] f32 for a result. The next call returns the same memory, so steps allocate
        nothing once the buffers have grown."""
        return self._sized(name, rows, width).tensor[:rows]

    def _sized(self, name: str, rows: int, width: int) -> Buffer:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.rows < rows:
            tensor = torch.empty(rows, width)
            self._buffers[name] = buffer = Buffer(tensor, rows, tensor.data_ptr())
        return buffer

    def _on(self, pool: KVPool) -> Any:
        """The kernels' engine, which reads and writes this pool's memory."""
        if pool is not self._pool:
            self._pool = pool
            self._model.cache, self._model.page = pool.data.data_ptr(), pool.page_size
            self._model.layer_elements = pool.data.stride(0)
            if self.world is not None:  # before the ranks: it provides arrays for two halves of a batch
                self.world.shared_by(self._model, len(self.weights.layers))
            if self._ranks is not None:
                self._model.ranks = self._ranks.shared_by(self._model, len(self.weights.layers))
            self._engine = self._kernels.nx_engine_new(self._model, self.threads, len(self.weights.layers))
            if not self._engine:
                raise MemoryError(f"the system gives no memory or no {self.threads} threads for the kernels")
            # Not at exit: a thread may still be in a step then, and the system frees everything.
            weakref.finalize(self, self._kernels.nx_engine_free, self._engine).atexit = False
        return self._engine
