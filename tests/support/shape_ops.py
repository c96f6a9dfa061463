"""Ops whose results have only the right shapes and types, for tensors of the device `meta`. Such tensors have
no numbers, so code that reads one raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nextn.ops.base import Addend, Columns, Routing, Spans, Tables


class ShapeOps:
    name = "shapes"
    exact_columns = True

    def embed(self, tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        assert tokens.shape == positions.shape
        embedding, cos, sin = (table.new_empty(len(tokens), table.shape[1]) for table in tables)
        return embedding.float(), cos, sin

    def embed_beside(
        self, tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        assert len(hidden if rows is None else rows) == len(tokens)
        x, cos, sin = self.embed(tokens, positions, tables)
        return tables.embedding.new_empty(len(x), 2 * x.shape[1]), cos, sin

    def linear(self, x: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        assert x.shape[1] == weight.shape[1]
        return x.new_empty(len(x), len(weight), dtype=dtype or x.dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x.new_empty(x.shape, dtype=weight.dtype)

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        assert all(one.shape == x.shape for one in added if isinstance(one, Tensor))
        return x, self.rms_norm(x, weight, eps)

    def swiglu_mlp(self, x: Tensor, gate_up: Tensor, down: Tensor, *, inner: Columns | None = None) -> Tensor:
        return x.new_empty(len(x), len(down), dtype=torch.float32)

    def write_latent(
        self, cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor,
        sin: Tensor,
    ) -> None:  # fmt: skip
        assert slots.shape == latent.shape[:1] == cos.shape[:1]

    def norm_latents(
        self, cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor,
        sin: Tensor, query: Tensor, query_weight: Tensor,
    ) -> Tensor:  # fmt: skip
        self.write_latent(cache, slots, latent, weight, eps, cos, sin)
        return self.rms_norm(query, query_weight, eps)

    def experts_with_shared(
        self, x: Tensor, runs: Any, gate_up: Tensor, down: Tensor, shared_gate_up: Tensor,
        shared_down: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self.experts(x, runs, gate_up, down), self.swiglu_mlp(x, shared_gate_up, shared_down)

    def best_of_product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.best_token(self.linear(x, weight, torch.float32))

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        return q.new_empty(*q.shape[:2], key_up.shape[2] + 2 * cos.shape[1])

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        rows = len(q)
        assert spans.positions.shape == spans.span_of.shape == (rows,)
        assert len(spans.cu_paths) == rows + 1
        assert len(spans.cu_rows) >= spans.count + 1
        return q.new_empty(*q.shape[:2], rank)

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        return x.new_empty(*x.shape[:2], weight.shape[2])

    def route(self, x: Tensor, router: Tensor, bias: Tensor, by: Routing) -> tuple[Tensor, Tensor]:
        shape = len(x), by.top_k
        return x.new_empty(shape, dtype=torch.int64), x.new_empty(shape, dtype=torch.float32)

    def dispatch(self, ids: Tensor, experts: int) -> Any:
        return ids.shape

    def experts(
        self, x: Tensor, runs: Any, gate_up: Tensor, down: Tensor, *, inner: Columns | None = None
    ) -> Tensor:
        return x.new_empty(*runs, down.shape[1], dtype=torch.float32)

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        return results.new_empty(len(weights), results.shape[2])

    def best_token(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits.new_empty(len(logits), dtype=torch.int64), logits.new_empty(len(logits))

    def uniforms(
        self, seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int
    ) -> Tensor:
        return position.new_empty(len(position), count, dtype=torch.float64)
