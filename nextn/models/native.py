"""DeepSeek-V3 on the native CPU kernels: the model of `nextn.models.deepseek_v3`, with one call a step.

The residual stream, norms, router and softmax are f32; what products and attention read is bf16; their
sums are f32. A row has the same bits whatever is beside it (csrc/linear.h, csrc/attention.h).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from nextn.draft import Draft
from nextn.gate import EDGES, Gate
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import PackedBatch, Span
from nextn.layers.mla import LATENT_NORM_EPS
from nextn.layers.rotary import rotary_tables, softmax_scale
from nextn.models.base import GuessChains
from nextn.models.config import ModelConfig
from nextn.models.native_weights import Drafting, NativeWeights
from nextn.ops.base import NO_TOKEN, Drawn
from nextn.ops.cpu.draw import packed
from nextn.ops.cpu.library import GATE, Guess, Model, NxBatch, NxChains, library
from nextn.ops.cpu.weights import padded

WIDEST = {  # buffers in csrc/forward.h and csrc/moe.h
    "hidden_size": 16384, "q_lora_rank": 8192, "kv_lora_rank": 1024, "n_routed_experts": 1024
}  # fmt: skip


def native_batch(batch: PackedBatch) -> NxBatch:
    """The batch as the kernels read it, where it lies: for as long as that lives."""
    return NxBatch(
        batch.rows, len(batch.starts), batch.token_ids.buffer_info()[0], batch.starts.buffer_info()[0],
        batch.page_at.buffer_info()[0], batch.cu_rows.buffer_info()[0],
        batch.cu_paths and batch.cu_paths.buffer_info()[0], batch.table.buffer_info()[0],
    )  # fmt: skip


class _Caller:
    """Chooses the guesses that the kernels ask for amid their call. Nothing can be raised through them, so an
    exception is kept."""

    def __init__(
        self,
        scores: Tensor,
        draws: Sequence[Drawn],
        first: int,
        tokens: array[int],
        most: int,
        guess: GuessChains,
    ) -> None:
        """first: of the chains, the first that is asked for. tokens: `most` for each chain."""
        self.scores, self.draws, self.first, self.guess = scores, draws, first, guess
        self.tokens, self.most = tokens, most
        self.over: set[int] = set()  # chains that have ended
        self.error: BaseException | None = None

    def __call__(self, depth: int, row: int) -> int:
        """row: of `scores`, the first that is asked for. 0: the tokens are there."""
        try:
            every = range(self.first, len(self.draws))
            asked = [i for i in every if self.draws[i].rows > depth and i not in self.over]
            paths = [self.tokens[i * self.most : i * self.most + depth] for i in asked]
            logits = self.scores[row : row + len(asked)]
            for i, token in zip(asked, self.guess(logits, list(zip(asked, paths, strict=True))), strict=True):
                self.tokens[i * self.most + depth] = token
                if token == NO_TOKEN:
                    self.over.add(i)
        except BaseException as e:
            self.error = e
            return 1
        return 0


class NativeDeepseekV3:
    """`place` every tensor of the checkpoint before the first step. level: of the kernels; None is the best.

    Raises ValueError for a model that is wider than the kernels' buffers.
    """

    dtype = torch.bfloat16  # of the cache
    device = torch.device("cpu")
    row_align = 1

    def __init__(
        self,
        cfg: ModelConfig,
        nextn_layers: int,
        threads: int,
        quantize: str | None = None,
        fp8: Collection[str] = (),
        drafting: Drafting = Drafting(),  # noqa: B008
        level: str | None = None,
    ) -> None:
        for name, most in WIDEST.items():
            if (getattr(cfg, name) or 0) > most:
                raise ValueError(f"{name} is {getattr(cfg, name)}: the native kernels take at most {most}")
        self.config, self.threads, self.nextn_layers = cfg, threads, nextn_layers
        self._kernels = library(level)
        self.cache_width = padded(cfg.latent_dim, 32)
        self.weights = w = NativeWeights(cfg, nextn_layers, quantize, fp8, drafting)
        self.place = w.place
        self._tables = rotary_tables(cfg, cfg.max_position_embeddings, self.device)
        self._model = Model(
            hidden=cfg.hidden_size, heads=cfg.num_attention_heads, nope=cfg.qk_nope_head_dim,
            rope=cfg.qk_rope_head_dim, rank=cfg.kv_lora_rank, value=cfg.v_head_dim,
            q_in=cfg.q_lora_rank or cfg.num_attention_heads * cfg.qk_head_dim, layers=cfg.num_hidden_layers,
            eps=cfg.rms_norm_eps, latent_eps=LATENT_NORM_EPS, scale=softmax_scale(cfg),
            embedding=w.embedding.data_ptr(), cosine=self._tables[0].data_ptr(),
            sine=self._tables[1].data_ptr(), layer=w.layers, norm=w.norm, head=w.head,
            width=self.cache_width,
        )  # fmt: skip
        if nextn_layers:
            self._model.nextn, self._model.draft_head = w.nextn, w.draft_head
            self._model.draft_vocab = len(drafting.tokens or range(cfg.vocab_size))
            if drafting.tokens is not None:
                self._draft_ids = array("i", drafting.tokens)
                self._model.draft_ids = self._draft_ids.buffer_info()[0]
        self._engine: Any = None
        self._pool: KVPool | None = None
        self._rooms: dict[str, Tensor] = {}

    @property
    def weight_bytes(self) -> int:
        return self.weights.bytes

    def batch(self, spans: Sequence[Span], page_size: int) -> PackedBatch:
        return PackedBatch(spans, page_size)

    def forward(self, batch: PackedBatch, pool: KVPool) -> Tensor:
        out = self._room("forward", batch.rows, self.config.hidden_size)
        self._kernels.nx_forward(self._on(pool), native_batch(batch), out.data_ptr())
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits(self._kernels.nx_logits, hidden)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        return self._logits(self._kernels.nx_draft_logits, hidden)

    def _logits(self, head: Callable[..., None], hidden: Tensor) -> Tensor:
        assert self._engine, "hidden states come from a step"
        rows = hidden.contiguous()
        out = self._room("logits", rows.shape[0], self.config.vocab_size)
        head(self._engine, rows.data_ptr(), rows.shape[0], out.shape[1], out.data_ptr())
        return out

    def draft(self, batch: PackedBatch, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        assert 0 <= layer < self.nextn_layers, layer
        rows = hidden.contiguous()
        out = self._room("draft", *rows.shape)  # read before it is written where `rows` lies there too
        self._kernels.nx_draft(self._on(pool), native_batch(batch), rows.data_ptr(), layer, out.data_ptr())
        return out

    def can_draw(self, draw: Drawn) -> bool:
        return True

    def chains(
        self,
        batch: PackedBatch,
        hidden: Tensor,
        rows: Sequence[int],
        pool: KVPool,
        after: Sequence[int],
        draws: Sequence[Drawn],
        guess: GuessChains,
        asked: int,
        gate: Gate | None,
        gated: Sequence[bool],
    ) -> list[Draft]:
        assert len(rows) == batch.rows
        states, spans, vocab = array("i", rows), array("i", after), self.config.vocab_size
        count, most = len(draws), max([d.rows for d in draws], default=0)
        tokens = array("i", bytes(4 * most * count))
        scores = self._room("logits", count, vocab)
        caller = _Caller(scores, draws, count - asked, tokens, most, guess)
        chains = NxChains(
            states.buffer_info()[0], spans.buffer_info()[0], packed(draws), count, most, vocab, asked,
            scores.data_ptr(), Guess(caller) if asked else Guess(),
        )  # fmt: skip
        bins, made, kept = array("B"), array("i", bytes(4 * count)), array("i")
        chains.made = made.buffer_info()[0]
        if gate is not None:
            bins.frombytes(bytes(most * count))
            kept.frombytes(bytes(4 * count))
            chains.gate, chains.gated = GATE.pack(*EDGES, *gate.rates, *gate[1:5]), bytes(gated)
            chains.bins, chains.kept = bins.buffer_info()[0], kept.buffer_info()[0]
        self._kernels.nx_chains(
            self._on(pool), native_batch(batch), hidden.data_ptr(), 0, chains, tokens.buffer_info()[0]
        )
        if caller.error is not None:
            raise caller.error
        found = tokens.tolist()
        starts = [i * most for i in range(count)]
        if gate is None:
            return [Draft(found[at : at + m]) for at, m in zip(starts, made, strict=True)]
        fell = bins.tobytes()
        return [
            Draft(found[at : at + k], bins=fell[at : at + m]) if through else Draft(found[at : at + k])
            for at, k, m, through in zip(starts, kept, made, gated, strict=True)
        ]

    def expert_bytes_read(self) -> int:
        """Of experts whose weights were read since the last call, each counted once in each layer's pass."""
        return int(self._kernels.nx_engine_expert_bytes(self._engine)) if self._engine else 0

    def _room(self, name: str, rows: int, width: int) -> Tensor:
        """[rows, width] f32 to write a result into; the same memory the next time, so that a step allocates
        nothing once its buffers have grown."""
        room = self._rooms.get(name)
        if room is None or room.shape[0] < rows:
            self._rooms[name] = room = torch.empty(rows, width)
        return room[:rows]

    def _on(self, pool: KVPool) -> Any:
        """The kernels' engine over this pool's memory."""
        if pool is not self._pool:
            self._pool = pool
            self._model.cache, self._model.page = pool.data.data_ptr(), pool.page_size
            self._model.layer_elements = pool.data.stride(0)
            self._engine = self._kernels.nx_engine_new(self._model, self.threads, len(self.weights.layers))
            if not self._engine:
                raise MemoryError(f"the system gives no memory or no {self.threads} threads for the kernels")
            weakref.finalize(self, self._kernels.nx_engine_free, self._engine)
        return self._engine
